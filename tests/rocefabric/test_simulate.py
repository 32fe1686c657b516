"""Published results in simulation: the article's experiments and incast, DCQCN's fixed point and fairness."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest

from rocefabric import dcqcn, headroom, model, simulate
from rocefabric._core import Simulation
from rocefabric.errors import NetworkError
from rocefabric.options import Options
from rocefabric.simulate import Failure, Traffic, Transfer

from .networks import EXAMPLE, star

#: One sender and a slower port, as the article limited one to make its queue grow: 2,227,007 packets/s.
LIMITED = """\
mtu = 1024
[[switches]]
name = "tor"
[[hosts]]
name = "fast"
[[hosts]]
name = "slow"
[[links]]
a = "fast"
b = "tor"
rate_gbps = 25
length_m = 15
[[links]]
a = "slow"
b = "tor"
rate_gbps = 19.7
length_m = 15
[ecn]
kmin_cells = {kmin}
kmax_cells = 1400
pmax_percent = 1
poll_us = {poll}
weight = {weight}
"""


SETTLED_US = 5000


def experiment(kmin: int, seed: int, poll: int = 0, weight: float = 0.25) -> tuple[int, int]:
    """The fullest queue while the session settles, and in 200 ms after that (looked at every 20 us)."""
    network = model.parse(LIMITED.format(kmin=kmin, poll=poll, weight=weight))
    traffic = Traffic("one session", (Transfer("fast", "slow"),), 1)
    running = simulate.assemble(network, traffic, seed=seed, window=4096)
    sim = running.sim
    (out,) = (number for number, name in running.switch_ports().items() if name == "tor to slow")
    sim.run(SETTLED_US * 1_000_000)
    beginning, most = sim.port(out)["most_cells"], 0
    for at in range(SETTLED_US, SETTLED_US + 200_000, 20):
        sim.run(at * 1_000_000)
        most = max(most, sim.queue(out))
    return beginning, most


@pytest.mark.parametrize(("poll", "weight"), [(0, 1), (10, 0.25), (50, 0.25)])
def test_the_articles_two_experiments(poll: int, weight: float) -> None:
    """Both were made with a stable session. Kmin 1 keeps the queue below Kmax, and Kmin 800 does not.

    Whether the switch knows its queue exactly, or polls and averages, as the article suspects.
    """
    assert all(experiment(1, seed, poll, weight)[1] <= 1400 for seed in range(3))
    assert all(experiment(800, seed, poll, weight)[1] > 1400 for seed in range(3))


def test_a_session_that_begins_may_pass_kmax() -> None:
    """It begins at line rate, and marks are drawn by chance: with Kmin 800 it passes Kmax more often."""

    def most(kmin: int, seed: int) -> int:
        network = model.parse(LIMITED.format(kmin=kmin, poll=50, weight=0.25))
        traffic = Traffic("one session", (Transfer("fast", "slow"),), SETTLED_US)
        return simulate.run(simulate.assemble(network, traffic, seed=seed, window=4096)).queue_most

    within = {kmin: sum(most(kmin, seed) <= 1400 for seed in range(20)) for kmin in (1, 800)}
    assert within[800] < within[1] < 20


def test_an_average_that_lags_makes_it_worse() -> None:
    assert experiment(800, 0, 100)[1] > experiment(800, 0)[1] + 300


def incast(cells: int) -> tuple[int, int, float]:
    """39 senders without congestion control to one port: drops, the fullest headroom, throughput."""
    network = star(40, "[pfc]\nalpha = 0.0625\n[ecn]\nkmin_cells = 1000000\nkmax_cells = 1000000")
    transfers = tuple(Transfer(f"host{at}", "host1") for at in range(2, 41))
    traffic = Traffic("39 to 1", transfers, 3000, busy=("host1",))
    running = simulate.assemble(network, traffic, headroom=cells, window=100_000)
    outcome = simulate.run(running)
    assert outcome.pauses > 500
    fullest = max(running.sim.port(port)["most_headroom"] for port in running.switch_ports())
    return outcome.lossless_drops, fullest, outcome.throughput


def test_39_to_1_loses_nothing_with_the_planned_headroom_and_something_with_one_mtu_less() -> None:
    network = star(40)
    # Only acknowledgements run towards the senders: no full frame is ahead of a pause.
    planned = headroom.tight_cells(network, 25, 15, 208, ahead=86)
    assert planned == 36
    drops, fullest, throughput = incast(planned)
    assert (drops, fullest) == (0, planned)
    assert throughput > 0.999
    drops, _, _ = incast(planned - headroom.cells(network.frame, 208))
    assert drops > 0
    assert headroom.headroom_cells(network, 25, 15, 208) > planned


def test_without_pauses_packets_are_lost() -> None:
    network = star(9, "[ecn]\nkmin_cells = 1000000\nkmax_cells = 1000000")
    network = dataclasses.replace(
        network, switches=(dataclasses.replace(network.switches[0], buffer_bytes=1 << 20),)
    )
    traffic = Traffic("8 to 1", tuple(Transfer(f"host{at}", "host1", 500_000) for at in range(2, 10)), 2000)
    lost, kept = (
        simulate.run(simulate.assemble(network, traffic, pauses=pauses)) for pauses in (False, True)
    )
    assert lost.lossless_drops > 0
    assert lost.resent > 0
    assert (kept.lossless_drops, kept.resent, kept.finished) == (0, 0, 8)


@pytest.mark.parametrize("flows", [2, 4])
def test_the_queue_settles_at_the_analytic_fixed_point(flows: int) -> None:
    network = star(flows + 1, "[ecn]\nkmin_cells = 30\nkmax_cells = 4000\npmax_percent = 5\n[pfc]\nalpha = 8")
    transfers = tuple(Transfer(f"host{at}", "host1") for at in range(2, flows + 2))
    running = simulate.assemble(network, Traffic("incast", transfers, 60_000, busy=("host1",)), window=4096)
    outcome = simulate.run(running, warm=0.5)
    share = dcqcn.fixed_point(25e9, flows, network.wire, dcqcn.PROFILES["sigcomm15"])
    expected = 30 + share / 0.05 * (4000 - 30)
    settled = outcome.queue[100:]
    assert sum(settled) / len(settled) == pytest.approx(expected, rel=0.25)
    assert outcome.throughput > 0.95
    received = [running.sim.flow(flow)["received"] for flow in running.flows]
    fairness = sum(received) ** 2 / flows / sum(each**2 for each in received)
    assert fairness > 0.95


@pytest.mark.parametrize(("senders", "used"), [(2, 0.99), (8, 0.97), (16, 0.95)])
def test_the_papers_thresholds_at_40_gbps(senders: int, used: float) -> None:
    """Kmin 5 KB, Kmax 200 KB, Pmax 1 %: the senders use the port, share it, and none is paused."""
    network = star(
        senders + 1, "[ecn]\nkmin_cells = 25\nkmax_cells = 985\npmax_percent = 1\n[pfc]\nalpha = 0.125"
    )
    network = dataclasses.replace(network, links=(dataclasses.replace(network.links[0], rate_gbps=40.0),))
    transfers = tuple(Transfer(f"host{at}", "host1") for at in range(2, senders + 2))
    traffic = Traffic("to one", transfers, 50_000, busy=("host1",))
    running = simulate.assemble(network, traffic, window=4096)
    outcome = simulate.run(running, warm=0.6)
    assert outcome.throughput > used
    assert outcome.pauses == 0
    received = [running.sim.flow(flow)["received"] for flow in running.flows]
    assert sum(received) ** 2 / senders / sum(each**2 for each in received) > 0.98
    assert max(outcome.queue[120:]) * 208 < 270_000


@pytest.mark.parametrize("senders", [8, 16])
def test_the_planned_pmax_holds_an_incast(senders: int) -> None:
    """1 % is enough for one flow; with more, the queue swings up to Kmax, and 16 leave the port idle."""

    def settled(percent: float) -> tuple[int, float]:
        network = star(senders + 1, f"[ecn]\npmax_percent = {percent}\n[pfc]\nalpha = 1")
        transfers = tuple(Transfer(f"host{at}", "host1") for at in range(2, senders + 2))
        traffic = Traffic("to one", transfers, 40_000, busy=("host1",))
        outcome = simulate.run(simulate.assemble(network, traffic), warm=0.5)
        return sorted(outcome.queue[100:])[95], outcome.throughput

    (one, used_by_one), (planned, used) = settled(1), settled(0)
    assert planned < 0.75 * one
    assert used > max(used_by_one, 0.99)


def test_steps_grow_with_the_line() -> None:
    """Four senders at 100G: with the paper's 40 Mb/s they use half of their port in the first 20 ms."""
    network = star(5, "[pfc]\nalpha = 1")
    network = dataclasses.replace(network, links=(dataclasses.replace(network.links[0], rate_gbps=100.0),))
    transfers = tuple(Transfer(f"host{at}", "host1") for at in range(2, 6))
    traffic = Traffic("to one", transfers, 20_000, busy=("host1",))
    plain, ours = (
        simulate.run(simulate.assemble(network, traffic, profile=each)).throughput
        for each in (dcqcn.profile("sigcomm15"), "sigcomm15")
    )
    assert plain < 0.6
    assert ours > 0.8


def test_only_the_papers_steps_are_scaled() -> None:
    paper = dcqcn.PROFILES["sigcomm15"]
    assert dcqcn.scaled(paper, 40) == dcqcn.scaled(paper, 25) == paper
    fast = dcqcn.scaled(paper, 400)
    assert (fast.add_bps, fast.hyper_bps, fast.step_ns) == (400e6, 4e9, 55000)
    for name in ("connectx", "ns3"):
        assert dcqcn.scaled(dcqcn.PROFILES[name], 400) == dcqcn.PROFILES[name]


def test_a_network_without_ecn_has_pauses_only() -> None:
    """Four senders stay at line rate: the port is full, and so is the buffer."""
    transfers = tuple(Transfer(f"host{at}", "host1") for at in range(2, 6))
    traffic = Traffic("to one", transfers, 20_000, busy=("host1",))
    without, usual = (
        simulate.run(simulate.assemble(star(5), traffic, profile=name, window=4096))
        for name in (dcqcn.NONE, "sigcomm15")
    )
    assert all(rate == (25.0,) * 4 for rate in without.rates)
    assert without.throughput > 0.999
    assert without.lossless_drops == 0
    assert without.queue[-1] > 10 * usual.queue[-1]


def test_two_flows_converge_from_apart() -> None:
    """The second one starts 5 ms late; 25 ms later both have their share."""
    network = star(3, "[ecn]\nkmin_cells = 30\nkmax_cells = 1200\npmax_percent = 1\n[pfc]\nalpha = 8")
    transfers = (Transfer("host2", "host1"), Transfer("host3", "host1", start_us=5000))
    outcome = simulate.run(simulate.assemble(network, Traffic("two", transfers, 30_000), window=4096))
    assert outcome.rates[30][0] > 20
    late = [sum(each[at] for each in outcome.rates[-50:]) / 50 for at in range(2)]
    assert late == [pytest.approx(12.5, rel=0.3)] * 2


def test_a_circle_of_buffers_is_a_deadlock() -> None:
    """Each of three flows takes two of three cables in a circle: without marks they stop for good."""

    def delivered(circle: bool) -> int:
        sim = Simulation(dcqcn.profile("sigcomm15", 25), Options(window=256))
        hosts = [sim.add_host() for _ in range(3)]
        switches = [sim.add_switch(100, 6, 0.5, 0.5, 0) for _ in range(3)]
        access = [
            sim.add_cable(host, switch, 320, 15_000) for host, switch in zip(hosts, switches, strict=True)
        ]
        ring = [sim.add_cable(one, other, 320, 15_000) for one, other in pairwise((*switches, switches[0]))]
        for port in range(12):
            sim.set_port(port, 200, 1e18, 1e18, 0, 0, 0)
        for at in range(3):
            target = (at + 2) % 3
            forth = [access[at], ring[at], ring[(at + 1) % 3], access[target] + 1]
            if not circle:
                forth = [access[at], ring[target] + 1, access[target] + 1]
            back = [access[target], ring[target], access[at] + 1]
            sim.add_flow(forth, back, 1 << 20, 1106, 1106, True, 0, -1)
        sim.run(500_000_000)
        before = sim.delivered
        sim.run(900_000_000)
        return int(sim.delivered - before)

    assert delivered(circle=True) == 0
    assert delivered(circle=False) > 1000


def test_traffic_survives_a_broken_cable() -> None:
    network = model.load(EXAMPLE)
    transfers = tuple(Transfer(f"host{at}", f"host{at + 16}", 100_000) for at in range(1, 17))
    traffic = Traffic("failure", transfers, 6000, (Failure(10, 0),))
    outcome = simulate.run(simulate.assemble(network, traffic))
    assert outcome.lost > 0
    assert (outcome.finished, outcome.lossless_drops) == (16, 0)


#: Two switches with parallel cables between them, in both directions of the file, and a host at each.
_BESIDE = """
mtu = 1024
[[switches]]
name = "left"
[[switches]]
name = "right"
[[hosts]]
name = "h"
[[hosts]]
name = "g"
[[links]]
a = "h"
b = "left"
rate_gbps = 100
[[links]]
a = "g"
b = "right"
rate_gbps = 100
[[links]]
a = "left"
b = "right"
count = 2
rate_gbps = 100
[[links]]
a = "right"
b = "left"
rate_gbps = 100
"""


@pytest.mark.parametrize("cut", [(), (0,), (1,), (2,), (0, 1), (2, 0), (1, 1), (0, 1, 2)])
def test_each_of_parallel_cables_can_break(cut: tuple[int, ...]) -> None:
    """Just those that are named, and what is left carries the traffic."""
    failures = tuple(Failure(100.0 * at, cable) for at, cable in enumerate(cut, 1))
    traffic = Traffic("cuts", (Transfer("h", "g", 10_000_000),), 8000, failures)
    running = simulate.assemble(model.parse(_BESIDE), traffic)
    outcome = simulate.run(running)
    one, other = (
        [running.sim.port(port)["down"] for port in running.ports[ends]]
        for ends in (("left", "right"), ("right", "left"))
    )
    assert [at for at, down in enumerate(one) if down] == sorted(set(cut))
    assert one == other
    assert outcome.finished == (len(set(cut)) < 3)


def test_a_host_that_is_not_there() -> None:
    with pytest.raises(NetworkError, match="traffic x: there is no host 'nobody'"):
        simulate.assemble(star(), Traffic("x", (Transfer("host1", "nobody"),), 10))


def test_a_plan_that_does_not_fit() -> None:
    network = star(40)
    small = dataclasses.replace(network.switches[0], buffer_bytes=65536)
    with pytest.raises(NetworkError, match="do not fit into the buffer of tor"):
        simulate.assemble(dataclasses.replace(network, switches=(small,)), Traffic("x", (), 10))
