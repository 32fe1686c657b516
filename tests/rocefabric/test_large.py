"""Large networks: how much work a plan of them is, and that saving it changes no finding."""

from __future__ import annotations

import itertools
import random
from unittest.mock import Mock

import pytest

from rocefabric import deadlock, ecn, failures, headroom, model, planner, simulate, topology
from rocefabric.simulate import Failure, Traffic, Transfer

LARGE = """\
[[switches]]
name = "tor"
count = {tors}
[[switches]]
name = "spine"
count = {spines}
boundary = false
[[hosts]]
name = "host"
count = {hosts}
[[links]]
a = "host"
b = "tor"
rate_gbps = 100
[[links]]
a = "tor"
b = "spine"
pattern = "mesh"
rate_gbps = 400
length_m = 30
"""


class Counted:
    """Counts searches for routes, and walks along paths."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.searches = self.paths = 0
        search, paths = topology.Topology._search, topology.Topology.paths

        def counted_search(*given: object) -> object:
            self.searches += 1
            return search(*given)  # type: ignore[arg-type]

        def counted_paths(*given: object) -> object:
            self.paths += 1
            return paths(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(topology.Topology, "_search", counted_search)
        monkeypatch.setattr(topology.Topology, "paths", counted_paths)


def test_the_plan_of_256_hosts_searches_each_route_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 ToRs and 4 spines: 32 cables, 496 pairs of them. It was a search for each pair, and a path, too."""
    counted = Counted(monkeypatch)
    planner.plan(model.parse(LARGE.format(hosts=256, tors=8, spines=4)))
    # One for each ToR, one more with each of its cables down, and those where two fail at one ToR.
    assert counted.searches <= 8 + 32 + 2 * 8 * 6
    assert counted.paths <= 1


def test_the_plan_of_1024_hosts_is_as_much_work_per_route(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 ToRs and 16 spines: 512 cables. Before, there was no plan after 100 s."""
    counted = Counted(monkeypatch)
    monkeypatch.setattr(deadlock, "MOST_PAIRS", 500)
    report = planner.plan(model.parse(LARGE.format(hosts=1024, tors=32, spines=16)))
    assert len(report.files()) == 32 + 16 + 1
    assert counted.searches <= 32 + 512 + 500
    assert counted.paths <= 1


def test_a_simulation_of_1024_hosts_searches_each_route_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    network = model.parse(LARGE.format(hosts=1024, tors=32, spines=16))
    transfers = tuple(Transfer(f"host{at}", f"host{1025 - at}", 1000) for at in range(1, 1025))
    made = Traffic("all", transfers, 10, (Failure(5, 0),))
    buffers, thresholds = Mock(wraps=headroom.buffers), Mock(wraps=ecn.thresholds)
    monkeypatch.setattr(simulate, "buffers", buffers)
    monkeypatch.setattr(simulate, "thresholds", thresholds)
    running = simulate.assemble(network, made)
    assert len(running.flows) == 1024
    assert counted.searches <= 2 * 32
    assert buffers.call_count == 48
    assert thresholds.call_count == 2


def _random_network(seed: int) -> topology.Topology:
    """Up to seven switches with some cables between them, some of them parallel."""
    dice = random.Random(seed)
    names = [f"s{at}" for at in range(dice.randrange(3, 8))]
    cables = [(names[dice.randrange(at)], name) for at, name in enumerate(names) if at]
    pairs = list(itertools.combinations(names, 2))
    cables += [dice.choice(pairs) for _ in range(dice.randrange(6))]
    hosts = dice.sample(names, dice.randrange(2, len(names) + 1))
    text = "".join(f'[[switches]]\nname = "{name}"\n' for name in names)
    text += "".join(f'[[hosts]]\nname = "h{name}"\n' for name in hosts)
    links = cables + [(f"h{name}", name) for name in hosts]
    text += "".join(f'[[links]]\na = "{a}"\nb = "{b}"\nrate_gbps = 25\n' for a, b in links)
    return topology.build(model.parse(text))


def _plainly(net: topology.Topology) -> tuple[list[str], list[str]]:
    """Sets of failures with a circle of buffers, and those with a loop, each route searched for itself."""
    cables = [at for at, cable in enumerate(net.cables) if cable in net.fabric_cables()]
    sets = [(), *((at,) for at in cables), *itertools.combinations(cables, 2)]
    circles, loops = [], []
    for failed in sets:
        name = ", ".join(str(net.cables[at]) for at in failed) or "no failure"
        down = frozenset(failed)
        new = [net._search(edge, down) for edge in net.edges()]
        if failures.find_cycle(failures.dependencies(new, net.edges())):
            circles.append(name)
        gone = {pair for ends in net.parted(down) for pair in itertools.permutations(ends)}
        for last in failed:
            old = [net._search(edge, down - {last}) for edge in net.edges()]
            for before, after in zip(old, new, strict=True):
                both = {
                    node: [
                        step
                        for step in (*before.get(node, ()), *after.get(node, ()))
                        if (node, step) not in gone
                    ]
                    for node in before | after
                }
                if failures.find_cycle(both):
                    loops.append(name)
    return circles, loops


@pytest.mark.parametrize("seed", range(40))
def test_saved_work_changes_no_finding(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlock, "MOST_CIRCLES", 10_000)
    net = _random_network(seed)
    found = deadlock.examine(net)
    circles, loops = _plainly(net)
    assert [name for name, _ in found.cycles] == circles
    assert [name for name, _ in found.loops] == loops
    for _, loop in found.loops:
        assert len(loop) > 1
        assert all(other in net.beside[one] for one, other in zip(loop, (*loop[1:], loop[0]), strict=True))
