"""Hosts with several adapters: dual-homed, on rails that are not joined, and with parallel cables."""

from __future__ import annotations

import pytest

from rocefabric import marking, model, planner, simulate, traffic
from rocefabric.errors import NetworkError
from rocefabric.report import Verdict
from rocefabric.simulate import Traffic, Transfer
from rocefabric.topology import build

#: Hosts at each of several switches that have no cable between them.
RAILS = """\
[[switches]]
name = "rail"
count = {rails}
[[hosts]]
name = "host"
count = {hosts}
[[links]]
a = "host"
b = "rail"
pattern = "mesh"
rate_gbps = 25
"""

#: Two pods of two hosts; each host has an adapter at each of its pod's two switches, and a spine joins all.
PODS = """\
[[switches]]
name = "spine"
boundary = false
[[switches]]
name = "left"
count = 2
[[switches]]
name = "right"
count = 2
[[hosts]]
name = "l"
count = 2
[[hosts]]
name = "r"
count = 2
[[links]]
a = "l"
b = "left"
pattern = "mesh"
rate_gbps = 25
[[links]]
a = "r"
b = "right"
pattern = "mesh"
rate_gbps = 25
[[links]]
a = "left"
b = "spine"
pattern = "mesh"
rate_gbps = 100
[[links]]
a = "right"
b = "spine"
pattern = "mesh"
rate_gbps = 100
"""


def rails(count: int, hosts: int = 4, more: str = "") -> model.Network:
    return model.parse(RAILS.format(rails=count, hosts=hosts) + more)


@pytest.mark.parametrize("count", [2, 8])
def test_rails_that_are_not_joined_are_planned(count: int) -> None:
    network = rails(count)
    topology = build(network)
    assert topology.switches_of("host1") == tuple(f"rail{at}" for at in range(1, count + 1))
    assert [path[1] for path in topology.paths("host1", "host2")] == list(topology.switches_of("host1"))
    report = planner.plan(network)
    assert report.verdict is not Verdict.BROKEN
    assert f"sonic-rail{count}.json" in report.files()
    (paths,) = (
        check.text for check in report.sections[0].checks if check.name.startswith("RoCE stays in queue")
    )
    # Two of the four hosts stand for all: one pair, both ways, on each rail.
    assert paths == f"on {2 * count} paths, at every hop"


def test_every_adapter_is_used_and_none_leaves_its_rail() -> None:
    """30 transfers to a host with two ports of 25G: by both, it receives more than one of them could take."""
    network = rails(2, more="[ecn]\nkmin_cells = 1000000\nkmax_cells = 1000000\n")
    transfers = tuple(Transfer(f"host{2 + at % 3}", "host1") for at in range(30))
    running = simulate.assemble(network, Traffic("to one", transfers, 2000, busy=("host1",)))
    ports = running.host_ports("host1")
    outcome = simulate.run(running)
    received = [running.sim.port(port)["received_bytes"] for port in ports]
    assert len(received) == 2
    assert all(received)
    assert sum(received) * 8 / 2e-3 / 1e9 > 45
    assert outcome.throughput > 0.95
    assert outcome.lossless_drops == 0


def test_joined_pods_send_by_the_shortest_way() -> None:
    topology = build(model.parse(PODS))
    assert topology.ends("l1", "l2") == [("left1", "left1"), ("left2", "left2")]
    across = [(f"left{a}", f"right{b}") for a in (1, 2) for b in (1, 2)]
    assert topology.ends("l1", "r1") == across
    assert len(topology.longest) == 5
    network = model.parse(PODS)
    for name in traffic.possible(topology):
        simulate.assemble(network, traffic.make(name, topology))


def test_an_adapters_second_switch_is_checked_too() -> None:
    """Only the first one's rules were looked at: its neighbour lets outsiders in."""
    text = RAILS.format(rails=1, hosts=2)
    more = '[[switches]]\nname = "open"\nboundary = false\n[[links]]\na = "host"\nb = "open"\n'
    network = model.parse(f'{text}{more}pattern = "mesh"\nrate_gbps = 25\n')
    found = {check.name: check for check in marking.section(network, build(network)).checks}
    assert found["Nothing else enters these queues"].verdict is Verdict.BROKEN
    assert "of open" in found["Nothing else enters these queues"].text


def test_hosts_without_a_common_network_are_refused() -> None:
    apart = RAILS.format(rails=1, hosts=2) + RAILS.format(rails=1, hosts=2).replace("host", "gpu").replace(
        "rail", "track"
    ).replace("[[gpus]]", "[[hosts]]")
    with pytest.raises(NetworkError, match="no path between rail and track"):
        build(model.parse(apart))
    joined = apart + '[[links]]\na = "gpu"\nb = "rail"\npattern = "mesh"\nrate_gbps = 25\n'
    assert build(model.parse(joined)).ends("host1", "gpu1") == [("rail", "rail")]


def test_parallel_cables_are_all_used() -> None:
    network = model.parse(RAILS.format(rails=1, hosts=3) + "count = 2\n")
    transfers = tuple(Transfer(f"host{2 + at % 2}", "host1", 10_000) for at in range(20))
    running = simulate.assemble(network, Traffic("bond", transfers, 1000))
    outcome = simulate.run(running)
    assert outcome.finished == 20
    assert all(running.sim.port(port)["received_bytes"] for port in running.host_ports("host1"))


def test_a_slow_host_is_slow_on_all_its_adapters_together() -> None:
    network = rails(2, 3)
    transfers = tuple(Transfer(f"host{2 + at % 2}", "host1") for at in range(16))
    running = simulate.assemble(network, Traffic("slow", transfers, 2000, drain_gbps={"host1": 10}))
    outcome = simulate.run(running)
    assert outcome.pauses > 0
    taken = sum(running.sim.flow(flow)["received"] for flow in running.flows) * 8 / 2e-3 / 1e9
    assert taken < 11
