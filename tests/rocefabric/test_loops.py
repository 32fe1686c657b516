"""Routing loops and the watchdog: when packets that run in a circle stop each other, and what ends it."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest

from rocefabric import dcqcn, deadlock, judge, model, own, planner, simulate
from rocefabric._core import Simulation
from rocefabric.errors import NetworkError
from rocefabric.options import Options
from rocefabric.simulate import Failure, Loop, Traffic, Transfer
from rocefabric.topology import build

from .networks import EXAMPLE, RING
from .test_small import CHAIN

MS = 1_000_000_000


def circling(switches: int, ttl: int, gbps: float, watchdog_ps: int = 0) -> Simulation:
    """A host sends at this rate into a circle of cables of 25 Gb/s, where its packets pass `ttl` of them."""
    options = Options(
        window=1 << 20, timeout_ps=1000 * MS, watchdog_ps=watchdog_ps, restore_ps=2 * watchdog_ps
    )
    sim = Simulation(dcqcn.profile("sigcomm15"), options)
    host = sim.add_host()
    nodes = [sim.add_switch(400, 6, 0.5, 0.5, 0) for _ in range(switches)]
    access = sim.add_cable(host, nodes[0], round(8e3 / gbps), 15_000)
    ring = [sim.add_cable(one, other, 320, 15_000) for one, other in pairwise((*nodes, nodes[0]))]
    for port in range(2 * (switches + 1)):
        sim.set_port(port, 200, 1e18, 1e18, 0, 0, 0)
    circle = [ring[at % switches] for at in range(ttl)]
    sim.add_flow([access, *circle, -1], [access + 1], 1 << 20, 1106, 1106, True, 0, -1)
    return sim


def goes_on(sim: Simulation) -> bool:
    """Whether packets still end their circles after 20 ms."""
    sim.run(20 * MS)
    before = sim.expired
    sim.run(25 * MS)
    assert not sim.lossless_drops
    return bool(sim.expired > before)


@pytest.mark.parametrize(
    ("switches", "ttl", "threshold"), [(2, 16, 3.125), (2, 64, 0.78125), (3, 15, 5), (4, 32, 3.125)]
)
def test_a_loop_stops_above_the_published_threshold(switches: int, ttl: int, threshold: float) -> None:
    """n x B / TTL of 25 Gb/s (Hu and others, HotNets 2016): a packet takes `ttl` of the n cables' turns."""
    assert goes_on(circling(switches, ttl, 0.9 * threshold))
    assert not goes_on(circling(switches, ttl, 1.2 * threshold))


def test_the_watchdog_ends_it_and_costs_packets() -> None:
    sim = circling(2, 16, 6, watchdog_ps=2 * MS)
    assert goes_on(sim)
    assert sim.watchdogs
    assert sim.watchdog_drops
    assert sim.created == sim.delivered + sim.expired + sim.watchdog_drops + sim.live
    for node in (1, 2):
        assert sim.used_cells(node) == sim.held_cells(node)


def test_a_watchdog_leaves_pauses_that_end_alone() -> None:
    """Eight senders are paused again and again, but each time for microseconds."""
    network = model.parse(
        CHAIN.replace("count = 2", "count = 2", 1)
        + '[[hosts]]\nname = "more"\ncount = 8\n[[links]]\na = "more"\nb = "s"\nrate_gbps = 25\n'
        + "[pfc]\nwatchdog_ms = 100\n"
    )
    transfers = tuple(Transfer(f"more{at}", "h1") for at in range(5, 9))
    running = simulate.assemble(network, Traffic("long", transfers, 101_000), profile="none", window=4096)
    assert simulate.options_of(network, 1, None, 101_000).watchdog_ps == 100 * MS
    assert simulate.options_of(network, 1, None, 99_000).watchdog_ps == 0
    outcome = simulate.run(running, samples=10)
    assert outcome.pauses > 0
    assert (outcome.watchdogs, outcome.watchdog_drops, outcome.lossless_drops) == (0, 0, 0)


def test_a_loop_in_a_network_ends_with_its_routes() -> None:
    """Packets of 200 us run between both switches; afterwards all is sent again, and arrives."""
    network = model.parse(CHAIN)
    traffic = Traffic(
        "loop",
        (Transfer("h1", "h2", 3_000_000),),
        20_000,
        loops=(Loop("h1", "h2", ("s1", "s2"), 100, 200, 8),),
    )
    outcome = simulate.run(simulate.assemble(network, traffic))
    assert outcome.expired > 0
    assert outcome.resent >= outcome.expired
    assert outcome.finished == 1
    assert "until their TTL was over" in "; ".join(judge.reasons(outcome, network.goals))


def test_what_a_watchdog_drops_is_a_loss() -> None:
    network = model.parse(CHAIN)
    traffic = Traffic("one", (Transfer("h1", "h2", 1000),), 100)
    outcome = simulate.run(simulate.assemble(network, traffic))
    assert judge.judge(outcome, network.goals).lossless
    lost = dataclasses.replace(outcome, watchdogs=1, watchdog_drops=3)
    assert not judge.judge(lost, network.goals).lossless
    assert "the watchdog emptied 1 queues: 3 packets" in "; ".join(judge.reasons(lost, network.goals))


def test_the_plan_has_the_threshold_of_its_loops() -> None:
    """The example's micro-loops are between a ToR and a spine, at 100G: 2 x 100 / 64."""
    network = model.load(EXAMPLE)
    part = deadlock.section(network, build(network))
    (number,) = (each for each in part.numbers if each.name.startswith("A loop deadlocks"))
    assert number.value == 3.125
    topology = build(model.parse(RING))
    assert deadlock.loop_gbps(topology, ("s1", "s2", "s3"), 16) == 3 * 25 / 16
    assert planner.plan(model.parse(CHAIN)).sections[4].numbers


# ---- in a file

FLOW = '[[transfers]]\nsource = "h1"\ntarget = "h2"\n'
CIRCLE = '[[loops]]\nsource = "h1"\ntarget = "h2"\ncircle = ["s2", "s1"]\nat_us = 5\nfor_us = 7\nttl = 9\n'


def test_a_file_says_where_packets_run_in_a_circle() -> None:
    made = own.make(own.parse(FLOW + CIRCLE, "own.toml"), build(model.parse(CHAIN)))
    assert made.loops == (Loop("h1", "h2", ("s2", "s1"), 5, 7, 9),)
    simulate.assemble(model.parse(CHAIN), made)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CIRCLE.replace('"s2", "s1"', '"s2"'), "own.toml:7: a circle has 2 to 64 switches, each once"),
        (CIRCLE.replace('"s2", "s1"', '"s2", "s2"'), "own.toml:7: a circle has 2 to 64"),
        (CIRCLE.replace('"s2", "s1"', '"s2", "h1"'), "own.toml:7: there is no cable between switches"),
        (CIRCLE.replace('"s2", "s1"', '"s2", "x"'), "own.toml:7: there is no cable between switches"),
        (CIRCLE.replace("ttl = 9", "ttl = 256"), "own.toml:10: ttl = 256 is more than 255"),
        (CIRCLE.replace("ttl = 9", "ttl = 0"), "own.toml:10: ttl = 0 is less than 1"),
        (CIRCLE.replace("for_us = 7", "for_us = inf"), "own.toml:9: for_us is no number"),
        (CIRCLE * 1001, "own.toml:1: there are more than 1000 pairs of hosts in [[loops]]"),
        (CIRCLE.replace('"h1"', '"h9"'), "own.toml:5: there is no host"),
    ],
)
def test_what_is_no_circle_is_refused(text: str, message: str) -> None:
    with pytest.raises(NetworkError) as caught:
        own.make(own.parse(FLOW + text, "own.toml"), build(model.parse(CHAIN)))
    assert str(caught.value).startswith(message)


def test_a_circle_that_traffic_does_not_pass() -> None:
    network = model.parse(RING)
    loop = Loop("h1", "h1", ("s2", "s3"), 0, 1)
    away = Traffic("away", (Transfer("h1", "h2"),), 10, loops=(dataclasses.replace(loop, target="h2"),))
    simulate.assemble(network, away)  # it passes s2
    for circle, message in ((("s1", "h1"), "no cable between switches"), (("s2", "s3"), "passes no switch")):
        made = Traffic("x", (Transfer("h1", "h1"),), 10, loops=(dataclasses.replace(loop, circle=circle),))
        with pytest.raises(NetworkError, match=message):
            simulate.assemble(network, made)


# ---- routes that change twice


def test_a_second_failure_leaves_the_first_ones_routes_until_then() -> None:
    """Two parallel ways, one breaks, then is not repaired when another one breaks: routes avoid both.

    The second change of a route took the place of the first, so packets went on to the first broken cable.
    """
    text = """\
[[switches]]
name = "left"
[[switches]]
name = "right"
[[switches]]
name = "way"
count = 3
[[hosts]]
name = "a"
[[hosts]]
name = "b"
[[links]]
a = "a"
b = "left"
rate_gbps = 25
[[links]]
a = "b"
b = "right"
rate_gbps = 25
[[links]]
a = "left"
b = "way"
pattern = "mesh"
rate_gbps = 25
[[links]]
a = "right"
b = "way"
pattern = "mesh"
rate_gbps = 25
"""
    network = model.parse(text)
    for seed in range(6):
        # Cables of `left`: 0, 1, 2. Routes follow at once, so what is lost was under way.
        broken = (Failure(100, 0, 1), Failure(400, 1, 1))
        traffic = Traffic("two", (Transfer("a", "b", 2_000_000),), 3000, broken)
        running = simulate.assemble(network, traffic, seed=seed)
        running.sim.run(300_000_000)
        between = running.sim.lost
        running.sim.run(390_000_000)
        assert running.sim.lost == between
        running.sim.run(450_000_000)
        after = running.sim.lost
        running.sim.run(3000_000_000)
        assert running.sim.lost == after
        assert running.sim.flow(0)["done_at"] > 0
