"""Cyclic buffer dependency: circles of ports in which each waits for the next one's pause to end."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from .ecn import product_cells, round_trip_us
from .headroom import buffers, representatives, share_cells
from .report import Section, Source, Table, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .model import Network
    from .topology import Hops, Topology

__all__ = ["Findings", "dependencies", "examine", "find_cycle", "micro_loop", "section"]

#: Two failures at a time are looked at up to this many pairs.
MOST_PAIRS = 5000
#: A buffer that packets of a link fill.
Buffer: TypeAlias = tuple[str, str]


def find_cycle(graph: Mapping[Buffer, Iterable[Buffer]] | Mapping[str, Iterable[str]]) -> tuple[object, ...]:
    """A circle in a directed graph, each node once in order; empty if there is none."""
    done: set[object] = set()
    for start in graph:
        path: list[object] = []
        on_path: dict[object, int] = {}
        waiting: list[tuple[object, bool]] = [(start, False)]
        while waiting:
            node, leaving = waiting.pop()
            if leaving:
                path.pop()
                del on_path[node]
                done.add(node)
            elif node in on_path:
                return tuple(path[on_path[node] :])
            elif node not in done:
                on_path[node] = len(path)
                path.append(node)
                waiting.append((node, True))
                waiting += [(other, False) for other in graph.get(node, ())]  # type: ignore[call-overload]
    return ()


def dependencies(tables: Iterable[Hops], edges: Iterable[str]) -> dict[Buffer, dict[Buffer, None]]:
    """Which buffer waits for which: a packet in (u, v) wants to go on to (v, w).

    :param tables: next hops, one table for each destination; with several next hops all are taken.
    :param edges: switches where packets enter.
    """
    # Dictionaries, not sets: circles are found in their order, which must be the same in each process.
    graph: dict[Buffer, dict[Buffer, None]] = {}
    entries = list(edges)
    for table in tables:
        seen: set[str] = set()
        waiting = [entry for entry in entries if entry in table]
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            for step in table[node]:
                after = graph.setdefault((node, step), {})
                after.update(((step, further), None) for further in table.get(step, ()))
                if step in table:
                    waiting.append(step)
    return graph


def micro_loop(old: Hops, new: Hops, gone: Iterable[frozenset[str]]) -> tuple[str, ...]:
    """A circle that packets of one destination can run in while some switches are on `new` routes already.

    :param gone: pairs of switches that have no cable any more: what is sent there is lost, not forwarded.
    """
    lost = set(gone)
    both = {
        node: [
            step for step in (*old.get(node, ()), *new.get(node, ())) if frozenset((node, step)) not in lost
        ]
        for node in old | new
    }
    return find_cycle(both)  # type: ignore[return-value]


def loops_in_order(old: Hops, new: Hops, gone: Iterable[frozenset[str]]) -> bool:
    """Whether a circle shows when switches change one by one, those farthest from the destination first."""
    lost = list(gone)
    distance = _distances(old)
    state = dict(old)
    for node in sorted(old | new, key=lambda each: -distance.get(each, 0)):
        state[node] = new.get(node, ())
        if micro_loop(state, {}, lost):
            return True
    return False


def _distances(table: Hops) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in table:
        steps, at = 0, node
        while table.get(at):
            at, steps = table[at][0], steps + 1
        found[node] = steps
    return found


@dataclass
class Findings:
    """What the search over failures found."""

    #: Sets of failed cables that were looked at, by size.
    looked_at: dict[int, int] = field(default_factory=dict)
    #: Failed cables, and the circle of ports.
    cycles: list[tuple[str, tuple[Buffer, ...]]] = field(default_factory=list)
    #: Failed cables and destination, and the circle of switches.
    loops: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    #: Of the loops: those that an ordered change of routes does not avoid.
    unordered: int = 0
    pairs_left_out: int = 0


def examine(topology: Topology) -> Findings:
    """Routes without failures, with each cable between switches down, and with each two."""
    cables = [
        index
        for index, cable in enumerate(topology.cables)
        if cable.a in topology.switches and cable.b in topology.switches
    ]
    edges = topology.edges()
    found = Findings()
    pairs = list(itertools.combinations(cables, 2))
    found.pairs_left_out = max(0, len(pairs) - MOST_PAIRS)
    routes: dict[frozenset[int], list[Hops]] = {}

    def at(down: frozenset[int]) -> list[Hops]:
        if down not in routes:
            routes[down] = [topology.hops(edge, down) for edge in edges]
        return routes[down]

    sets: list[tuple[int, ...]] = [(), *((index,) for index in cables), *pairs[:MOST_PAIRS]]
    for failed in sets:
        down = frozenset(failed)
        found.looked_at[len(down)] = found.looked_at.get(len(down), 0) + 1
        name = ", ".join(str(topology.cables[index]) for index in failed) or "no failure"
        if cycle := find_cycle(dependencies(at(down), edges)):
            found.cycles.append((name, cycle))  # type: ignore[arg-type]
        for last in failed:
            _converging(topology, found, name, at(down - {last}), at(down), down)
    return found


def _converging(
    topology: Topology, found: Findings, name: str, old: list[Hops], new: list[Hops], down: frozenset[int]
) -> None:
    beside = topology.neighbours(down)
    gone = [
        frozenset((topology.cables[index].a, topology.cables[index].b))
        for index in down
        if topology.cables[index].b not in beside[topology.cables[index].a]
    ]
    for before, after in zip(old, new, strict=True):
        if loop := micro_loop(before, after, gone):
            found.loops.append((name, loop))
            found.unordered += loops_in_order(before, after, gone)


def _remedies(part: Section, network: Network, topology: Topology, found: Findings) -> None:
    name = representatives(topology)[0]
    division, switch = buffers(network, topology, name), topology.switches[name]
    slowest = min(port.link.rate_gbps for port in topology.ports[name])
    rows = [
        (
            "order of convergence: farthest switches change first",
            f"{found.unordered} of {len(found.loops)} loops are left",
            "needs support by the routing protocol",
        ),
        (
            f"watchdog after {network.pfc.watchdog_ms} ms",
            f"ends every deadlock; a port loses up to {max(division.headroom) + division.guarantee} cells "
            "and its share",
            "lost packets are sent again (go-back-N)",
        ),
    ]
    reaction = round_trip_us(network, topology) + network.ecn.poll_us / network.ecn.weight
    for alpha in (network.pfc.alpha, 2 * network.pfc.alpha):
        share = share_cells(max(division.shared, 0), alpha, 1)
        fills = share / product_cells(slowest, 1, network, switch.cell_bytes)
        rows.append(
            (
                f"pause threshold with alpha {alpha:g}, and DCQCN",
                f"{fills:.0f} us at {slowest:g}G until {name} pauses; marks take {reaction:.0f} us",
                "a delay, no guarantee",
            )
        )
    part.tables.append(Table("Remedies", ("remedy", "effect", "price"), tuple(rows)))


def section(network: Network, topology: Topology) -> Section:
    """Part 5 of the plan."""
    part = Section("Deadlock")
    found = examine(topology)
    texts = {0: "no failure", 1: "one cable down", 2: "two cables down"}
    for size, count in found.looked_at.items():
        part.number(
            f"Route sets looked at: {texts[size]}", count, "", "all shortest routes to all edges", Source.OURS
        )
    if found.pairs_left_out:
        part.remarks.append(f"{found.pairs_left_out} pairs of cables were left out.")
    steady = [cycle for name, cycle in found.cycles if name == "no failure"]
    part.check(
        "No circle of buffers without failures",
        not steady,
        " -> ".join(f"{a} to {b}" for a, b in steady[0]) if steady else "every route goes up, then down",
    )
    after = [each for each in found.cycles if each[0] != "no failure"]
    part.check(
        "No circle of buffers after one or two failures",
        not after,
        f"with {after[0][0]} down: " + " -> ".join(f"{a} to {b}" for a, b in after[0][1])
        if after
        else f"in {sum(count for size, count in found.looked_at.items() if size)} sets of failed cables",
    )
    part.check(
        "No micro-loop while routes change",
        not found.loops,
        f"{len(found.loops)} possible; with {found.loops[0][0]} down: {' -> '.join(found.loops[0][1])}"
        if found.loops
        else "old and new routes together have no circle",
        otherwise=Verdict.WARNING,
    )
    for _, cycle in found.cycles[:3]:
        part.cycles.append(tuple(f"{a} to {b}" for a, b in cycle))
    part.cycles += [loop for _, loop in found.loops[:1]]
    if found.cycles or found.loops:
        _remedies(part, network, topology, found)
    return part
