"""The plan holds in simulation: with the planned headroom nothing lossless is dropped in any network."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocefabric import model, simulate
from rocefabric.headroom import buffers
from rocefabric.simulate import Traffic, Transfer
from rocefabric.topology import build

TWO_TIERS = """\
mtu = {mtu}
[[switches]]
name = "tor"
count = 2
buffer_bytes = 65536
cell_bytes = {cell}
[[switches]]
name = "spine"
boundary = false
buffer_bytes = 65536
cell_bytes = {cell}
[[hosts]]
name = "host"
count = {hosts}
[[links]]
a = "host"
b = "tor"
rate_gbps = {rate}
length_m = {access}
[[links]]
a = "tor"
b = "spine"
pattern = "mesh"
rate_gbps = {uplink}
length_m = {length}
[pfc]
alpha = {alpha}
largest_frame = {largest}
margin_percent = 0
response_ns = {response}
[ecn]
kmin_cells = 1000000
kmax_cells = 1000000
"""


def both_ways(
    mtu: int,
    hosts: int,
    rate: int,
    uplink: int,
    lengths: tuple[int, int],
    alpha: float,
    response: int,
    seed: int,
    headroom: int | None = None,
    cell: int = 208,
) -> simulate.Outcome:
    """All hosts send to one, and it to them, with little memory to share."""
    text = TWO_TIERS.format(
        mtu=mtu, hosts=hosts, rate=rate, uplink=uplink, access=lengths[0], length=lengths[1], alpha=alpha,
        largest=mtu + 62, response=response, cell=cell,
    )  # fmt: skip
    network = model.parse(text)
    topology = build(network)
    needed = max(-buffers(network, topology, name).shared for name in topology.switches) * cell
    switches = tuple(
        dataclasses.replace(each, buffer_bytes=each.buffer_bytes + needed + 100 * 208)
        for each in network.switches
    )
    network = dataclasses.replace(network, switches=switches)
    transfers = [Transfer(f"host{at}", "host1") for at in range(2, hosts + 1)]
    transfers += [Transfer("host1", f"host{at}") for at in range(2, hosts + 1)]
    traffic = Traffic("both ways", tuple(transfers), 300)
    running = simulate.assemble(network, traffic, seed=seed, window=100_000, headroom=headroom)
    outcome = simulate.run(running, samples=3)
    left = running.sim.created - running.sim.delivered - running.sim.lossless_drops
    assert left == running.sim.live
    return outcome


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    mtu=st.sampled_from([256, 1024, 4096]),
    hosts=st.sampled_from([4, 8]),
    rate=st.sampled_from([10, 25, 100]),
    uplink=st.sampled_from([25, 100, 400]),
    lengths=st.tuples(st.integers(1, 30), st.integers(1, 300)),
    alpha=st.sampled_from([1 / 16, 1 / 4, 1]),
    response=st.integers(300, 3000),
    seed=st.integers(0, 1000),
    cell=st.sampled_from([32, 48, 64, 80, 144, 208]),
)
def test_never_a_drop_with_the_planned_headroom(
    mtu: int,
    hosts: int,
    rate: int,
    uplink: int,
    lengths: tuple[int, int],
    alpha: float,
    response: int,
    seed: int,
    cell: int,
) -> None:
    """No marks, no margin, just enough memory."""
    outcome = both_ways(mtu, hosts, rate, uplink, lengths, alpha, response, seed, cell=cell)
    assert outcome.lossless_drops == 0
    assert outcome.pauses > 0


@pytest.mark.parametrize("cell", [32, 48, 64, 76])
def test_small_cells_need_more_of_them(cell: int) -> None:
    """A frame fills many; where cells are large, it is the smallest frames that fill most of them."""
    outcome = both_ways(1024, 8, 25, 100, (3, 100), 1 / 4, 1500, 1, cell=cell)
    assert (outcome.lossless_drops, outcome.pauses > 0) == (0, True)


def test_a_third_of_it_is_not_enough() -> None:
    assert both_ways(1024, 8, 25, 100, (3, 100), 1 / 4, 1500, 1).lossless_drops == 0
    assert both_ways(1024, 8, 25, 100, (3, 100), 1 / 4, 1500, 1, headroom=30).lossless_drops > 0
