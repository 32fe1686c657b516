"""Buffers of the lossless class: what arrives after a pause was decided, and when it is decided."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .report import Section, Source, Table, Verdict

if TYPE_CHECKING:
    from .model import Network, Switch
    from .topology import Topology

__all__ = [
    "Buffers",
    "article_cells",
    "bits_per_cell",
    "buffers",
    "cells",
    "frames_cells",
    "guarantee_cells",
    "headroom_cells",
    "response_ns",
    "section",
    "share_cells",
    "tight_cells",
]

#: The smallest frame; preamble and gap of each.
_SMALLEST, _BETWEEN = 64, 20
#: The article's two results: Gb/s, meters, cells.
ARTICLE_POINTS = ((100.0, 100.0, 408), (25.0, 15.0, 98))
ARTICLE_CELL = 208
JUMBO = 9216


def cells(frame: int, cell_bytes: int) -> int:
    """Cells of one frame: a cell holds bytes of one frame only."""
    return -(-frame // cell_bytes)


@functools.cache
def bits_per_cell(cell_bytes: int, largest: int) -> float:
    """The fewest bits on the wire in which one cell fills: of the smallest frames, or, in small cells, of
    those that are a byte longer than whole cells.

    :param largest: bytes of the largest frame.
    """
    frames = range(_SMALLEST, max(largest, _SMALLEST) + 1)
    return min((frame + _BETWEEN) * 8 / cells(frame, cell_bytes) for frame in frames)


def cable_ns(length_m: float, meters_per_us: float) -> float:
    """One way through the cable."""
    return length_m / meters_per_us * 1000


def article_cells(rate_gbps: float, length_m: float, constant_ns: float, *, bits: int = 512) -> float:
    """The article's formula as it stands: (Tm1 + Tm2 + 2L/v) x rate / bits of a 64-byte packet."""
    return (constant_ns + 2 * cable_ns(length_m, 200)) * rate_gbps / bits


def article_constant_ns(rate_gbps: float, length_m: float, result: int, *, bits: int = 512) -> float:
    """Tm1 + Tm2 that the article's formula needs for one of its results."""
    return result * bits / rate_gbps - 2 * cable_ns(length_m, 200)


def response_ns(network: Network, rate_gbps: float, length_m: float, frame: int) -> float:
    """From threshold to silence: responses, a frame before the pause frame, a frame begun, the cable."""
    pfc = network.pfc
    wait = 2 * (frame + 20) * 8 / rate_gbps
    return pfc.response_ns + wait + 2 * cable_ns(length_m, pfc.meters_per_us)


def frames_cells(
    network: Network, rate_gbps: float, length_m: float, frame: int, cell_bytes: int = ARTICLE_CELL
) -> float:
    """The reading with frames, in packets that fill most cells."""
    bits = bits_per_cell(cell_bytes, frame)
    return response_ns(network, rate_gbps, length_m, frame) * rate_gbps / bits


def headroom_cells(network: Network, rate_gbps: float, length_m: float, cell_bytes: int) -> int:
    """What the plan reserves for one port: the reading with frames and the margin, rounded up."""
    largest = network.pfc.largest_frame
    exact = frames_cells(network, rate_gbps, length_m, largest, cell_bytes)
    planned = math.ceil(exact * (1 + network.pfc.margin_percent / 100))
    # Without a margin, the frame that crosses the threshold counts, too.
    return max(planned, tight_cells(network, rate_gbps, length_m, cell_bytes, largest + _BETWEEN))


def tight_cells(network: Network, rate_gbps: float, length_m: float, cell_bytes: int, ahead: int) -> int:
    """What traffic of full RoCE frames can fill at most: the frames that end after the pause was decided.

    Without margin: the frame that crosses the threshold, and those that begin before silence.

    :param ahead: bytes on the wire of the largest frame that the pause frame may have to wait for.
    """
    waits = (ahead + network.wire) * 8 / rate_gbps
    passed = network.pfc.response_ns + waits + 2 * cable_ns(length_m, network.pfc.meters_per_us)
    frames = math.floor(passed * rate_gbps / (network.wire * 8)) + 1
    return frames * cells(network.frame, cell_bytes)


def guarantee_cells(switch: Switch) -> int:
    """One jumbo frame."""
    return cells(JUMBO, switch.cell_bytes)


def share_cells(shared: float, alpha: float, congested: int) -> float:
    """The dynamic threshold of each of `congested` priority groups that are all at it."""
    return alpha * shared / (1 + alpha * congested)


@dataclass(frozen=True)
class Buffers:
    """The memory of one switch, in cells."""

    total: int
    guarantee: int
    #: Of one lossless class, by port, in the order of the topology.
    headroom: tuple[int, ...]
    #: What is left for everybody.
    shared: int
    #: Lossless classes: each has its headroom and guarantee at each port.
    classes: int = 1

    @property
    def ports(self) -> int:
        """Ports with a lossless priority group."""
        return len(self.headroom)

    @property
    def reserved(self) -> int:
        """The headroom of all ports and classes."""
        return self.classes * sum(self.headroom)

    @property
    def guarantees(self) -> int:
        """Of all priority groups: each lossless class and the lossy one, at each port."""
        return (self.classes + 1) * self.guarantee * self.ports


def buffers(network: Network, topology: Topology, name: str) -> Buffers:
    """How a switch's memory is divided.

    Guarantees are for one priority group per port and lossless class, and a lossy one.
    """
    switch = topology.switches[name]
    total = switch.buffer_bytes // switch.cell_bytes
    guarantee = guarantee_cells(switch)
    headroom = tuple(
        headroom_cells(network, port.link.rate_gbps, port.link.length_m, switch.cell_bytes)
        for port in topology.ports[name]
    )
    empty = Buffers(total, guarantee, headroom, 0, len(network.marking.lossless()))
    return dataclasses.replace(empty, shared=total - empty.reserved - empty.guarantees)


def representatives(topology: Topology) -> list[str]:
    """One switch of each kind: same model, same ports."""
    seen: dict[object, str] = {}
    for name, switch in topology.switches.items():
        kinds = tuple(sorted((port.link.rate_gbps, port.link.length_m) for port in topology.ports[name]))
        seen.setdefault((switch.name, kinds), name)
    return list(seen.values())


def _cables(part: Section, network: Network, topology: Topology) -> None:
    constants = [article_constant_ns(*point) for point in ARTICLE_POINTS]
    part.remarks.append(
        "The article's formula takes Tm1 + Tm2 as constant; its two results need "
        f"{constants[0]:.0f} ns (100G, 100 m, 408 cells) and {constants[1]:.0f} ns (25G, 15 m, 98 cells). "
        "What fits both is a constant of 1500 ns and two full frames: one before the pause frame, one begun "
        "by the sender. The plan uses this reading, with the margin on top."
    )
    kinds = sorted(
        {
            (port.link.rate_gbps, port.link.length_m, switch.cell_bytes)
            for name, switch in topology.switches.items()
            for port in topology.ports[name]
        }
    )
    same = len({cell for *_, cell in kinds}) == 1
    rows = []
    frame, margin = network.pfc.largest_frame, network.pfc.margin_percent
    for rate, length, cell in kinds:
        exact = frames_cells(network, rate, length, frame, cell)
        planned = headroom_cells(network, rate, length, cell)
        kind = f"{rate:g}G, {length:g} m" + ("" if same else f", cells of {cell} bytes")
        part.number(
            f"Headroom of a port of {kind}",
            planned,
            "cells",
            f"({network.pfc.response_ns:g} ns + 2 x {frame + 20} bytes / rate + 2 x {length:g} m / v) x rate "
            f"/ {bits_per_cell(cell, frame):g} bits = {exact:.1f}, + {margin:g} %",
            Source.FITTED,
        )
        low, high = (article_cells(rate, length, constant) for constant in sorted(constants))
        jumbo = frames_cells(network, rate, length, JUMBO, cell)
        rows.append(
            (
                kind,
                f"{low:.0f} to {high:.0f}",
                f"{exact:.1f}",
                f"{jumbo:.0f}",
                str(planned),
            )
        )
    part.tables.append(
        Table(
            "Headroom in cells: both readings, jumbo frames, and the plan",
            ("port", "article, constant time", f"frames of {frame}", f"frames of {JUMBO}", "planned"),
            tuple(rows),
        )
    )


def _switch(part: Section, network: Network, topology: Topology, name: str) -> None:
    division, switch = buffers(network, topology, name), topology.switches[name]
    alpha, count = network.pfc.alpha, division.ports
    part.number(
        f"{name}: guarantee of a priority group",
        division.guarantee,
        "cells",
        f"ceil({JUMBO} / {switch.cell_bytes})",
        Source.ARTICLE,
    )
    part.number(
        f"{name}: shared buffer",
        division.shared,
        "cells",
        f"{division.total} - headroom {division.reserved} - guarantees {division.classes + 1} x "
        f"{division.guarantee} x {count}",
        Source.OURS,
    )
    fits = division.shared > 0
    part.check(
        f"{name}: headroom and guarantees fit",
        fits,
        f"{division.reserved + division.guarantees} of {division.total} cells",
    )
    if not fits or count < 2:
        return
    crowds = sorted({1, min(8, count - 1), count - 1})
    rows = []
    for each in (1 / 8, 1 / 4, 1 / 2, 1.0):
        shares = [f"{share_cells(division.shared, each, n):.0f}" for n in crowds]
        rows.append((f"{each:g}", *shares))
    head = ("alpha", *(f"{n} groups" for n in crowds))
    title = f"{name}: pause threshold (xoff) in cells, by congested groups"
    part.tables.append(Table(title, head, tuple(rows)))
    inputs = count - 1
    share = share_cells(division.shared, alpha, inputs)
    left = (share + division.guarantee) * inputs + sum(sorted(division.headroom)[1:])
    right = division.total + division.guarantee
    part.number(
        f"{name}: pause threshold with {inputs} inputs to one output",
        share,
        "cells",
        f"alpha {alpha:g} x {division.shared} / (1 + {alpha:g} x {inputs})",
        Source.ARTICLE,
    )
    part.check(
        f"{name}: pauses come before the output drops",
        left <= right,
        f"(PG-Share {share:.0f} + PG-Guarantee {division.guarantee}) x {inputs} + headrooms = "
        f"{left:.0f} cells, Queue-Share + Queue-Guarantee = {right}",
    )
    part.check(
        f"{name}: a group has room before its pause",
        share >= cells(network.frame, switch.cell_bytes),
        f"{share:.0f} cells, a frame has {cells(network.frame, switch.cell_bytes)}",
        otherwise=Verdict.WARNING,
    )


def section(network: Network, topology: Topology) -> Section:
    """Part 3 of the plan."""
    part = Section("PFC: pauses and headroom")
    _cables(part, network, topology)
    for name in representatives(topology):
        _switch(part, network, topology, name)
    if network.pfc.largest_frame < JUMBO:
        part.remarks.append(
            f"Frames of {JUMBO} bytes in any class of a port need the headroom of their column: set "
            "pfc.largest_frame if the network carries them."
        )
    part.remarks.append(
        "Queue-Share of the lossless queue is the static maximum; shares of lossy queues must be limited, "
        "or their packets take the buffer away (the plan's device settings do it)."
    )
    return part
