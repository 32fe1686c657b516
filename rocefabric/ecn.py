"""ECN thresholds from bandwidth-delay products, and where PFC would act before them."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .dcqcn import PROFILES, fixed_point, scaled
from .headroom import buffers, cells, representatives, share_cells
from .report import Section, Source, Table, Verdict
from .scheduling import cnp_flows

if TYPE_CHECKING:
    from .model import Network
    from .topology import Topology

__all__ = ["Thresholds", "effective_pmax", "round_trip_us", "section", "thresholds"]

#: Of the tolerable delay: the rest is for the hops that are not congested, and for what arrives late.
CONGESTED_SHARE = 0.5
#: Preamble to FCS around the payload, for packets per second.
OVERHEAD = 82


#: What others ship: whose, Kmin and Kmax in bytes, Pmax in percent (-1: not published), for all rates.
SHIPPED = (
    ("SONiC", 1 << 20, 2 << 20, 5, "all rates"),
    ("Onyx", 150_000, 1_500_000, -1, "all rates"),
)


#: HPCC's simulator: Kmin and Kmax in bytes at 25G, and in proportion at other rates; Pmax in percent.
HPCC = (100_000, 400_000, 20)


@dataclass(frozen=True)
class Thresholds:
    """Marking of one rate's queues, in cells; `pmax` from 0 to 1."""

    kmin: int
    kmax: int
    pmax: float


def round_trip_us(network: Network, topology: Topology) -> float:
    """A packet and its answer over the longest path, with empty queues."""
    path = topology.longest
    total = 0.0
    for node, peer in itertools.pairwise(path):
        link = next(port.link for port in topology.ports[node] if port.peer == peer)
        total += (network.wire + CONTROL_WIRE) * 8 / link.rate_gbps
        total += 2 * link.length_m / network.pfc.meters_per_us * 1000
        if node in topology.switches:
            total += 2 * topology.switches[node].latency_ns
    return total / 1000


#: An acknowledgement on the wire: headers, AETH, preamble and gap.
CONTROL_WIRE = 86


def product_cells(rate_gbps: float, delay_us: float, network: Network, cell_bytes: int) -> float:
    """Cells that full frames at `rate_gbps` fill in `delay_us`."""
    frames = rate_gbps * 1e3 * delay_us / 8 / network.wire
    return frames * cells(network.frame, cell_bytes)


def effective_pmax(rate_gbps: float, mtu: int, interval_us: float) -> float:
    """The share of packets whose marks a receiver can answer: more marks make no more CNPs (one flow)."""
    packets = rate_gbps * 1e9 / 8 / (mtu + OVERHEAD)
    return 1e6 / interval_us / packets


def incast_pmax(network: Network, rate_gbps: float) -> float:
    """The share of packets that is marked once the flows of the largest incast share a port.

    Below it, their queue settles above Kmax, where every packet is marked and the senders swing. The closed
    form is too high above a few percent, which is the safe side.
    """
    flows, interval = cnp_flows(network), network.ecn.cnp_interval_us * 1e-6
    senders = scaled(PROFILES["sigcomm15"], network.slowest_gbps)
    return min(1.0, fixed_point(rate_gbps * 1e9, flows, network.wire, senders, interval))


def least_pmax(network: Network, rate_gbps: float) -> float:
    """What one flow answers, and what the largest incast needs: the larger one."""
    one = effective_pmax(rate_gbps, network.mtu, network.ecn.cnp_interval_us)
    return max(one, incast_pmax(network, rate_gbps))


def thresholds(network: Network, topology: Topology, rate_gbps: float, cell_bytes: int) -> Thresholds:
    """Kmin, Kmax and Pmax of a port."""
    ecn = network.ecn
    round_trip = round_trip_us(network, topology)
    tolerable = max(network.goals.usual_latency_us * CONGESTED_SHARE, 2 * round_trip)
    faster = rate_gbps / min(cable.link.rate_gbps for cable in topology.cables)
    kmin = round(ecn.kmin_cells * faster)
    if not kmin:
        kmin = max(1, math.floor(product_cells(rate_gbps, round_trip, network, cell_bytes) / 2))
    kmax = round(ecn.kmax_cells * faster)
    if not kmax:
        kmax = math.floor(product_cells(rate_gbps, tolerable, network, cell_bytes))
    pmax = ecn.pmax_percent or math.ceil(100 * least_pmax(network, rate_gbps))
    return Thresholds(kmin, max(kmin, kmax), min(1.0, pmax / 100))


def _rates(part: Section, network: Network, topology: Topology, cell_bytes: int) -> None:
    ecn, round_trip = network.ecn, round_trip_us(network, topology)
    for rate in sorted({cable.link.rate_gbps for cable in topology.cables}):
        found = thresholds(network, topology, rate, cell_bytes)
        product = product_cells(rate, round_trip, network, cell_bytes)
        source = Source.FILE if ecn.kmin_cells else Source.ARTICLE
        half = f"half of {rate:g}G x {round_trip:.2f} us = {product:.0f} cells"
        formula = "given" if ecn.kmin_cells else half
        part.number(f"Kmin at {rate:g}G", found.kmin, "cells", formula, source)
        tolerable = network.goals.usual_latency_us
        formula = (
            "given"
            if ecn.kmax_cells
            else f"{rate:g}G x {CONGESTED_SHARE:g} of {tolerable:g} us (at least two round trips)"
        )
        part.number(f"Kmax at {rate:g}G", found.kmax, "cells", formula, source)
        effective = effective_pmax(rate, network.mtu, ecn.cnp_interval_us)
        flows, shared = cnp_flows(network), incast_pmax(network, rate)
        most = (
            f"ceil(max({100 * effective:.3f} %: 1/{ecn.cnp_interval_us:g} us / packets per s for one flow, "
            f"{100 * shared:.2f} %: DCQCN's fixed point for {flows} flows))"
        )
        formula, source = ("given", Source.FILE) if ecn.pmax_percent else (most, Source.FIXED_POINT)
        part.number(f"Pmax at {rate:g}G", 100 * found.pmax, "%", formula, source)
        part.check(
            f"Pmax at {rate:g}G lets {flows} flows settle below Kmax",
            found.pmax >= shared,
            f"{100 * found.pmax:g} %, their fixed point is {100 * shared:.2f} %",
            otherwise=Verdict.WARNING,
        )
        part.check(
            f"Pmax at {rate:g}G marks all that a receiver answers",
            found.pmax >= effective,
            f"{100 * found.pmax:g} %, one flow answers up to {100 * effective:.3f} %",
            otherwise=Verdict.WARNING,
        )
        part.check(
            f"Kmin at {rate:g}G is below the bandwidth-delay product",
            found.kmin <= max(1, product),
            f"{found.kmin} of {product:.0f} cells",
            otherwise=Verdict.WARNING,
        )
        wait = found.kmax / product_cells(rate, 1, network, cell_bytes)
        part.check(
            f"A queue at Kmax at {rate:g}G is tolerable",
            wait <= network.goals.latency_us,
            f"{wait:.1f} us, the goal is {network.goals.latency_us:g} us",
            otherwise=Verdict.WARNING,
        )


def _shipped(network: Network, topology: Topology, cell_bytes: int) -> Table:
    """The planned thresholds beside those of others, in one unit."""
    rows = []
    rates = sorted({cable.link.rate_gbps for cable in topology.cables})
    for rate in rates:
        found = thresholds(network, topology, rate, cell_bytes)
        low, high = (f"{each * cell_bytes / 1000:.0f}" for each in (found.kmin, found.kmax))
        rows.append(("this plan", f"{rate:g}G", low, high, f"{100 * found.pmax:g} %"))
    least, most, share = HPCC
    theirs = [
        ("HPCC's simulator", least * rate / 25, most * rate / 25, share, f"{rate:g}G") for rate in rates
    ]
    for name, kmin, kmax, percent, rate_text in (*theirs, *SHIPPED):
        pmax = f"{percent} %" if percent >= 0 else "-"
        rows.append((name, rate_text, f"{kmin / 1000:.0f}", f"{kmax / 1000:.0f}", pmax))
    title = "Kmin, Kmax and Pmax beside what others ship, which is for throughput more than for latency"
    return Table(title, ("whose", "rate", "Kmin, kB", "Kmax, kB", "Pmax"), tuple(rows))


def _before_pauses(part: Section, network: Network, topology: Topology) -> None:
    for name in representatives(topology):
        division = buffers(network, topology, name)
        if division.shared <= 0 or division.ports < 2:
            continue
        switch, ports = topology.switches[name], topology.ports[name]
        slowest = min(port.link.rate_gbps for port in ports)
        kmax = thresholds(network, topology, slowest, switch.cell_bytes).kmax
        fanout = len(ports) - 1
        share = share_cells(division.shared, network.pfc.alpha, 1) / fanout
        crowded = share_cells(division.shared, network.pfc.alpha, fanout) / fanout
        part.check(
            f"{name}: one input to {fanout} outputs is marked before it is paused",
            share >= kmax,
            f"{network.pfc.alpha:g} x {division.shared} / (1 + {network.pfc.alpha:g}) / {fanout} = "
            f"{share:.0f} cells per output, Kmax {kmax}; {crowded:.0f} with all groups congested",
            otherwise=Verdict.WARNING,
        )


def _lag(part: Section, network: Network, topology: Topology) -> None:
    ecn = network.ecn
    # The average reaches 63 % of a step after 1 / weight looks.
    lag = round_trip_us(network, topology) + ecn.poll_us / ecn.weight
    part.number(
        "Marks lag behind the queue by",
        lag,
        "us",
        f"round trip {round_trip_us(network, topology):.2f} us + {ecn.poll_us:g} us / weight {ecn.weight:g}",
        Source.OURS,
    )
    cell_bytes = next(iter(topology.switches.values())).cell_bytes
    slowest = min(cable.link.rate_gbps for cable in topology.cables)
    found = thresholds(network, topology, slowest, cell_bytes)
    growth = product_cells(slowest, lag, network, cell_bytes)
    part.check(
        f"From Kmin to Kmax there is time to react at {slowest:g}G",
        growth <= found.kmax - found.kmin,
        f"two flows at line rate add {growth:.0f} cells in it, Kmax - Kmin is {found.kmax - found.kmin}",
        otherwise=Verdict.WARNING,
    )


def section(network: Network, topology: Topology) -> Section:
    """Part 4 of the plan."""
    part = Section("ECN")
    cell_bytes = next(iter(topology.switches.values())).cell_bytes
    part.number(
        "Round trip with empty queues",
        round_trip_us(network, topology),
        "us",
        f"over {' - '.join(topology.longest)}",
        Source.OURS,
    )
    _rates(part, network, topology, cell_bytes)
    rates = sorted({cable.link.rate_gbps for cable in topology.cables})

    def row(mtu: int) -> tuple[str, ...]:
        interval = network.ecn.cnp_interval_us
        return (str(mtu), *(f"{100 * effective_pmax(rate, mtu, interval):.3f}" for rate in rates))

    part.tables.append(
        Table(
            f"Highest effective Pmax, %: one CNP in {network.ecn.cnp_interval_us:g} us / packets per second",
            ("MTU", *(f"{rate:g}G" for rate in rates)),
            tuple(row(mtu) for mtu in (256, 512, 1024, 2048, 4096)),
        )
    )
    part.tables.append(_shipped(network, topology, cell_bytes))
    _lag(part, network, topology)
    _before_pauses(part, network, topology)
    part.remarks.append(
        "How far the thresholds hold depends on delays and traffic: `aiordma fabric simulate` shows it."
    )
    return part
