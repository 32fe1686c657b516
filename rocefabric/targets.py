"""What one switch is to be set to, in bytes and percents, before it is written for an operating system."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .ecn import thresholds
from .headroom import buffers, cells, headroom_cells
from .marking import queue_at
from .ports import interfaces
from .scheduling import cnp_cap_bps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .model import Network
    from .topology import Topology

__all__ = ["ALPHAS", "PortTarget", "Target", "fraction", "percents", "power", "settable", "target"]

#: The least and the largest alpha that a system can set; all of them are powers of two.
ALPHAS = {
    "sonic": (1 / 256, 128.0),
    "cumulus": (1 / 128, 64.0),
    "eos": (1 / 64, 8.0),
    "junos": (1 / 128, 8.0),
}


def power(alpha: float) -> int:
    """The exponent of the power of two that chips have for `alpha`, rounded down."""
    return math.floor(math.log2(alpha))


def settable(alpha: float, system: str) -> float:
    """The closest alpha that a system can set, from below if possible."""
    least, most = ALPHAS[system]
    return float(min(most, max(least, 2.0 ** power(alpha))))


def fraction(alpha: float) -> tuple[int, int]:
    """`alpha` as chips have it: numerator and denominator."""
    exponent = power(alpha)
    return (1 << exponent, 1) if exponent >= 0 else (1, 1 << -exponent)


def percents(weights: Mapping[int, int]) -> dict[int, int]:
    """Whole percents in the proportion of `weights`, one at least, 100 together."""
    left, rest = 100, sum(weights.values())
    found = {}
    for key, weight in sorted(weights.items(), key=lambda each: each[1]):
        found[key] = max(1, left * weight // rest)
        left, rest = left - found[key], rest - weight
    return found


@dataclass(frozen=True)
class PortTarget:
    """One port. Sizes are bytes."""

    name: str
    rate_gbps: float
    length_m: float
    #: Of each lossless class.
    headroom: int
    kmin: int
    kmax: int
    #: Percent.
    pmax: int

    @property
    def kind(self) -> str:
        """Names a profile of ports of this rate."""
        return f"roce-{self.rate_gbps:g}g".replace(".", "p")

    @property
    def cable(self) -> str:
        """Names a profile of ports with such a cable, whose length is in whole meters on switches."""
        return f"{self.kind}-{self.meters}m"

    @property
    def meters(self) -> int:
        """Of the cable, rounded up."""
        return max(1, math.ceil(self.length_m))


@dataclass(frozen=True)
class Target:
    """One switch. Sizes are bytes."""

    #: DSCPs of each queue that has any.
    dscps: Mapping[int, tuple[int, ...]]
    #: Queues of the lossless classes: switches pause the priority of this number.
    lossless: tuple[int, ...]
    cnp: int
    other: int
    #: Percent of each queue that is not strict, 100 together.
    shares: Mapping[int, int]
    cap_kbps: int
    alpha: float
    total: int
    #: Headroom of all ports and classes.
    reserved: int
    watchdog_ms: int
    ports: tuple[PortTarget, ...]

    def kinds(self) -> list[PortTarget]:
        """One port of each rate."""
        return list({port.kind: port for port in self.ports}.values())

    def cables(self) -> list[PortTarget]:
        """One port of each rate and cable."""
        return list({port.cable: port for port in self.ports}.values())


def target(network: Network, topology: Topology, name: str) -> Target:
    """Of one switch.

    :raises NetworkError: if the names of its ports do not fit.
    """
    switch, marking = topology.switches[name], network.marking
    division, cell = buffers(network, topology, name), switch.cell_bytes
    dscps: dict[int, list[int]] = {}
    for dscp in range(64):
        dscps.setdefault(queue_at(network, switch, dscp), []).append(dscp)
    lossless = tuple(sorted(each.queue for each in marking.lossless()))
    # Queues of the switch's own map get the least that there is.
    weights = dict.fromkeys(sorted(dscps), 1)
    weights |= {marking.other_queue: marking.other_weight} | dict.fromkeys(lossless, marking.roce_weight)
    weights.pop(marking.cnp_queue, None)
    ports = []
    for interface, port in zip(interfaces(network, topology, name), topology.ports[name], strict=True):
        rate, length = port.link.rate_gbps, port.link.length_m
        found = thresholds(network, topology, rate, cell)
        ports.append(
            PortTarget(
                interface,
                rate,
                length,
                headroom_cells(network, rate, length, cell) * cell,
                found.kmin * cell,
                max(found.kmax, found.kmin + cells(network.frame, cell)) * cell,
                math.ceil(100 * found.pmax),
            )
        )
    return Target(
        {queue: tuple(each) for queue, each in sorted(dscps.items())},
        lossless,
        marking.cnp_queue,
        marking.other_queue,
        percents(weights),
        round(cnp_cap_bps(network) / 1000),
        settable(network.pfc.alpha, switch.system),
        division.total * cell,
        division.reserved * cell,
        network.pfc.watchdog_ms,
        tuple(ports),
    )
