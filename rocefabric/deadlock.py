"""Cyclic buffer dependency: circles of ports in which each waits for the next one's pause to end."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .ecn import product_cells, round_trip_us
from .failures import Search, gained
from .headroom import buffers, representatives, share_cells
from .report import Section, Source, Table, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .failures import Buffer
    from .model import Network
    from .topology import Hops, Topology

__all__ = ["Findings", "examine", "loop_gbps", "loops_in_order", "micro_loop", "section"]

#: Two failures at a time are looked at up to this many pairs.
MOST_PAIRS = 5000
#: With which hosts send.
TTL = 64
#: Sets of failures with a circle that are looked for: the plan shows the first ones.
MOST_CIRCLES = 20


def _way_back(state: Callable[[str], Iterable[str]], node: str, steps: Iterable[str]) -> tuple[str, ...]:
    """A circle from `node` over one of `steps` back to it; empty if there is none."""
    before = dict.fromkeys(steps, node)
    waiting = deque(before)
    while waiting:
        at = waiting.popleft()
        for step in state(at):
            if step == node:
                circle = [at]
                while before[circle[-1]] != node:
                    circle.append(before[circle[-1]])
                return (node, *reversed(circle))
            if step not in before:
                before[step] = at
                waiting.append(step)
    return ()


def micro_loop(old: Hops, new: Hops, gone: Iterable[frozenset[str]]) -> tuple[str, ...]:
    """A circle that packets of one destination can run in while some switches are on `new` routes already.

    Neither has a circle of its own.

    :param gone: pairs of switches that have no cable any more: what is sent there is lost, not forwarded.
    """
    lost = {pair for ends in gone for pair in itertools.permutations(ends)}

    def both(node: str) -> Iterator[str]:
        for step in (*old.get(node, ()), *new.get(node, ())):
            if (node, step) not in lost:
                yield step

    for node, more in gained(old, new):
        kept = [step for step in more if (node, step) not in lost]
        if loop := _way_back(both, node, kept):
            return loop
    return ()


def loops_in_order(old: Hops, new: Hops, gone: Iterable[frozenset[str]]) -> bool:
    """Whether a circle shows when switches change one by one, those farthest from the destination first."""
    lost = {pair for ends in gone for pair in itertools.permutations(ends)}
    distance = _distances(old)
    rank = {node: (-distance.get(node, 0), at) for at, node in enumerate(old | new)}
    for node, more in gained(old, new):
        # A circle can show only when this switch changes: those before it have changed, the others not.
        turn = rank[node]

        def now(each: str, turn: tuple[int, int] = turn) -> Iterator[str]:
            changed = each in rank and rank[each] <= turn
            for step in (new if changed else old).get(each, ()):
                if (each, step) not in lost:
                    yield step

        kept = [step for step in more if (node, step) not in lost]
        if kept and _way_back(now, node, kept):
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
    found = Findings()
    pairs = list(itertools.islice(itertools.combinations(cables, 2), MOST_PAIRS))
    found.pairs_left_out = len(cables) * (len(cables) - 1) // 2 - len(pairs)
    search = Search(topology)
    sets: list[tuple[int, ...]] = [(), *((index,) for index in cables), *pairs]
    for failed in sets:
        down = frozenset(failed)
        found.looked_at[len(down)] = found.looked_at.get(len(down), 0) + 1
        name = ", ".join(str(topology.cables[index]) for index in failed) or "no failure"
        changed = search.changed(down)
        if len(found.cycles) < MOST_CIRCLES and (cycle := search.circle(down, changed)):
            found.cycles.append((name, cycle))
        for last in failed:
            _converging(search, found, name, down, down - {last}, changed)
    return found


def _converging(
    search: Search,
    found: Findings,
    name: str,
    down: frozenset[int],
    before: frozenset[int],
    changed: Iterable[str],
) -> None:
    gone = [frozenset(pair) for pair in search.topology.parted(down)]
    for edge in changed:
        old, new = search.routes(edge, before), search.routes(edge, down)
        if loop := micro_loop(old, new, gone):
            found.loops.append((name, loop))
            found.unordered += loops_in_order(old, new, gone)


def loop_gbps(topology: Topology, loop: Sequence[str], ttl: int = TTL) -> float:
    """What may go into a loop of switches without a deadlock: n x B / TTL, by Hu and others, HotNets 2016.

    Each packet takes `ttl` turns at the loop's n cables, of which the slowest has the rate B.
    """
    around = zip(loop, (*loop[1:], loop[0]), strict=True)
    rates = [
        max(port.link.rate_gbps for port in topology.ports[one] if port.peer == other)
        for one, other in around
    ]
    return len(rates) * min(rates) / ttl


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
    if found.loops:
        least = min((loop for _, loop in found.loops), key=lambda each: loop_gbps(topology, each))
        part.number(
            "A loop deadlocks if more goes into it than",
            loop_gbps(topology, least),
            "Gb/s",
            f"{len(least)} switches x the slowest cable / TTL {TTL}: {' -> '.join(least)}",
            Source.LOOPS,
        )
    if found.cycles or found.loops:
        _remedies(part, network, topology, found)
    return part
