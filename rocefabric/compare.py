"""What a network counted, beside its plan and a simulation: which assumptions hold, and which do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import simulate
from .counters import Counters
from .ecn import thresholds
from .headroom import bits_per_cell, headroom_cells, response_ns
from .ports import interfaces
from .report import Section, Source, Table, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .model import Network
    from .simulate import Traffic
    from .topology import Port, Topology

__all__ = ["Simulated", "section", "simulated"]

#: Rows of the table: the ports with the fullest queues.
_SHOWN = 40


@dataclass(frozen=True)
class Simulated:
    """One simulation's numbers that devices count, too."""

    name: str
    pauses_per_second: float
    cnps_per_second: float
    queue_bytes: int
    headroom_cells: int


@dataclass(frozen=True)
class _Row:
    """A port of a switch, with what it counted."""

    node: str
    name: str
    port: Port
    counted: Counters
    cell_bytes: int

    @property
    def cells(self) -> int:
        """Of the headroom that was taken."""
        return -(-self.counted.headroom_bytes // self.cell_bytes)

    @property
    def wait_us(self) -> float:
        """For the last packet of the fullest queue."""
        return self.counted.queue_bytes * 8e-3 / self.port.link.rate_gbps


def simulated(network: Network, traffic: Traffic, *, seed: int = 1, profile: str = "sigcomm15") -> Simulated:
    """Run one traffic, and count as devices do."""
    running = simulate.assemble(network, traffic, seed=seed, profile=profile)
    outcome = simulate.run(running, seed=seed)
    ports = [running.sim.port(number) for numbers in running.ports.values() for number in numbers]
    seconds = traffic.duration_us / 1e6
    return Simulated(
        traffic.name,
        outcome.pauses / seconds,
        sum(port["notes"] for port in ports) / seconds,
        outcome.queue_most * network.switches[0].cell_bytes,
        max(port["most_headroom"] for port in ports),
    )


def _rows(
    network: Network, topology: Topology, counted: Mapping[str, Mapping[str, Counters]], unknown: list[str]
) -> Iterator[_Row]:
    for node, ports in counted.items():
        if node not in topology.switches:
            continue
        names = dict(zip(interfaces(network, topology, node), topology.ports[node], strict=True))
        unknown += [f"{node} {name}" for name in ports if name not in names]
        cell = topology.switches[node].cell_bytes
        for name, port in names.items():
            if name in ports:
                yield _Row(node, name, port, ports[name], cell)


def _headrooms(part: Section, network: Network, rows: list[_Row]) -> None:
    used = [row for row in rows if row.counted.headroom_bytes]
    if not used:
        part.remarks.append("No headroom was taken, or none was counted: the response times are not known.")
        return

    def planned_of(row: _Row) -> int:
        return headroom_cells(network, row.port.link.rate_gbps, row.port.link.length_m, row.cell_bytes)

    def left(row: _Row) -> float:
        return row.cells / planned_of(row)

    worst = max(used, key=left)
    rate, length = worst.port.link.rate_gbps, worst.port.link.length_m
    planned = planned_of(worst)
    margin = planned / (1 + network.pfc.margin_percent / 100)
    part.check(
        "The planned headroom was enough",
        worst.cells <= margin,
        f"{worst.cells} of {planned} cells at {worst.node} {worst.name}, {margin:.0f} without the margin",
        otherwise=Verdict.WARNING if worst.cells <= planned else Verdict.BROKEN,
    )
    apart = response_ns(network, rate, length, network.pfc.largest_frame) - network.pfc.response_ns
    bits = bits_per_cell(worst.cell_bytes, network.pfc.largest_frame)
    shown = worst.cells * bits / rate - apart
    part.number(
        "pfc.response_ns that this headroom shows",
        max(0.0, shown),
        "ns",
        f"{worst.cells} cells x {bits:g} bits / {rate:g}G - {apart:.0f} ns for frames and {length:g} m; "
        f"the plan assumes {network.pfc.response_ns:g}",
        Source.OURS,
    )


def _queues(part: Section, network: Network, topology: Topology, rows: list[_Row]) -> None:
    full = [row for row in rows if row.counted.queue_bytes]
    if not full:
        return
    worst = max(full, key=lambda row: row.wait_us)
    kmax = thresholds(network, topology, worst.port.link.rate_gbps, worst.cell_bytes).kmax * worst.cell_bytes
    part.check(
        f"Queues were short enough for {network.goals.latency_us:g} us",
        worst.wait_us <= network.goals.latency_us,
        f"{worst.counted.queue_bytes / 1000:.0f} kB at {worst.node} {worst.name} take "
        f"{worst.wait_us:.1f} us; Kmax is {kmax / 1000:.0f} kB",
        otherwise=Verdict.WARNING,
    )
    shown = sorted(full, key=lambda row: -row.wait_us)[:_SHOWN]
    part.tables.append(
        Table(
            f"Ports with the fullest queues ({len(shown)} of {len(rows)} that counted)",
            ("port", "rate", "queue, kB", "us", "headroom, cells", "pauses sent", "received"),
            tuple(
                (
                    f"{row.node} {row.name}", f"{row.port.link.rate_gbps:g}G",
                    f"{row.counted.queue_bytes / 1000:.0f}", f"{row.wait_us:.1f}", str(row.cells),
                    str(row.counted.pauses_sent), str(row.counted.pauses_received),
                )
                for row in shown
            ),
        )
    )  # fmt: skip


def _beside(everything: Counters, seconds: float, rows: list[_Row], others: list[Simulated]) -> Table:
    queue = max((row.counted.queue_bytes for row in rows), default=0)
    cells = max((row.cells for row in rows), default=0)
    lines = [
        ("pauses per second, of all ports", everything.pauses_sent / seconds, "pauses_per_second"),
        ("notifications per second, of all hosts", everything.cnps_sent / seconds, "cnps_per_second"),
        ("the fullest queue, kB", queue / 1000, "queue_bytes"),
        ("headroom taken at one port, cells", cells, "headroom_cells"),
    ]
    return Table(
        "Counted and simulated",
        ("what", "counted", *(each.name for each in others)),
        tuple(
            (
                what,
                f"{value:.0f}",
                *(f"{getattr(each, name) / (1000 if 'kB' in what else 1):.0f}" for each in others),
            )
            for what, value, name in lines
        ),
    )


def section(
    network: Network,
    topology: Topology,
    counted: Mapping[str, Mapping[str, Counters]],
    seconds: float,
    others: list[Simulated],
) -> Section:
    """Judge what was counted in `seconds`.

    :param counted: by device and port.
    :param others: simulations to show beside it.
    """
    part = Section("Counters")
    unknown: list[str] = []
    rows = list(_rows(network, topology, counted, unknown))
    everything = _sum(counted)
    part.check(
        "Nothing lossless was dropped", not everything.drops, f"{everything.drops} packets in {seconds:g} s"
    )
    most, pace = network.goals.pauses_per_second, everything.pauses_sent / seconds
    part.check(
        f"At most {most:g} pauses/s",
        pace <= most,
        f"{pace:.3g} pauses/s of {len(counted)} devices",
        otherwise=Verdict.WARNING,
    )
    if everything.marked and everything.cnps_sent:
        share = everything.cnps_sent / everything.marked
        part.number(
            "Marks that were answered", 100 * share, "%", "notifications / marked packets", Source.OURS
        )
    _headrooms(part, network, rows)
    _queues(part, network, topology, rows)
    part.tables.append(_beside(everything, seconds, rows, others))
    if unknown:
        part.remarks.append(f"{len(unknown)} ports are none of the network's, such as {unknown[0]}.")
    return part


def _sum(counted: Mapping[str, Mapping[str, Counters]]) -> Counters:
    found = Counters()
    for ports in counted.values():
        for each in ports.values():
            for name, value in vars(each).items():
                found.add(name, value)
    return found
