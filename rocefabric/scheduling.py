"""Strict priority for CNPs, with a cap, and weighted shares for the rest."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from .report import Section, Source, Verdict

if TYPE_CHECKING:
    from .model import Network
    from .topology import Topology

__all__ = ["CNP_WIRE", "cnp_cap_bps", "cnp_latency_ns", "section"]

#: A CNP on the wire: Ethernet 14, IP 20, UDP 8, BTH 12, reserved 16, ICRC 4, FCS 4, preamble and gap 20.
CNP_WIRE = 98
#: Flows that one port is to carry CNPs for at their highest rate, unless the goals name a larger incast.
FLOWS = 32


def cnp_flows(network: Network) -> int:
    """Flows whose CNPs one port must be able to carry."""
    return max(FLOWS, network.goals.incast)


def cnp_cap_bps(network: Network) -> float:
    """Rate cap of the CNP queue."""
    if network.marking.cnp_cap_mbps:
        return network.marking.cnp_cap_mbps * 1e6
    needed = cnp_flows(network) * 1e6 / network.ecn.cnp_interval_us * CNP_WIRE * 8
    return math.ceil(needed / 1e7) * 1e7


def cnp_latency_ns(network: Network, topology: Topology) -> float:
    """Longest way of a CNP through a busy network: at each port it waits for one largest frame."""
    path = topology.longest
    total = 0.0
    for node, peer in itertools.pairwise(path):
        link = next(port.link for port in topology.ports[node] if port.peer == peer)
        total += CNP_WIRE * 8 / link.rate_gbps + link.length_m / network.pfc.meters_per_us * 1000
        if node in topology.switches:
            total += topology.switches[node].latency_ns
            total += (network.pfc.largest_frame + 20) * 8 / link.rate_gbps
    return total


def section(network: Network, topology: Topology) -> Section:
    """Part 2 of the plan."""
    part = Section("Scheduling")
    marking = network.marking
    rates = sorted({cable.link.rate_gbps for cable in topology.cables})
    cap = cnp_cap_bps(network)
    interval = network.ecn.cnp_interval_us
    flows = cnp_flows(network)
    need = flows * 1e6 / interval * CNP_WIRE * 8
    part.number(
        "CNP traffic of one port, at most",
        need / 1e6,
        "Mb/s",
        f"{flows} flows x 1/{interval:g} us x {CNP_WIRE} bytes x 8",
        Source.PAPER,
    )
    given = "given" if marking.cnp_cap_mbps else "the line above, rounded up to 10 Mb/s"
    part.number("Cap of the strict CNP queue", cap / 1e6, "Mb/s", given, Source.ARTICLE)
    part.check("The cap lets all CNPs pass", cap >= need, f"{cap / 1e6:g} of {need / 1e6:.1f} Mb/s")
    weights = len(marking.lossless()) * marking.roce_weight + marking.other_weight
    for rate in rates:
        left = rate - cap / 1e9
        for name, weight in (("RoCE", marking.roce_weight), ("everything else", marking.other_weight)):
            part.number(
                f"Share of {name} at {rate:g}G with CNPs flooded",
                max(left, 0) * weight / weights,
                "Gb/s",
                f"({rate:g} - {cap / 1e9:g}) x {weight}/{weights}",
                Source.OURS,
            )
    lowest = rates[0]
    part.check(
        "A flooded CNP queue starves no other queue",
        cap / 1e9 <= 0.1 * lowest,
        f"the cap is {cap / 1e7 / lowest:.1f} % of the slowest port ({lowest:g}G); at most 10 % is to go",
    )
    latency = cnp_latency_ns(network, topology) / 1000
    path = topology.longest
    part.number(
        "A CNP from end to end, at most",
        latency,
        "us",
        f"{len(path) - 2} switches, each with one frame of {network.pfc.largest_frame} bytes ahead",
        Source.OURS,
    )
    part.check(
        f"CNPs arrive within {network.goals.cnp_us:g} us",
        latency <= network.goals.cnp_us,
        f"{latency:.2f} us over {' - '.join(path)}",
        otherwise=Verdict.WARNING,
    )
    return part
