"""Routes with cables down, and which buffer waits for which: only what a failure changes is worked out."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from .topology import Hops, Topology

__all__ = ["Buffer", "Search", "dependencies", "find_cycle", "gained"]

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


def gained(old: Hops, new: Hops) -> Iterator[tuple[str, list[str]]]:
    """Switches that send to more neighbours than before, and to which. Only there can a circle begin."""
    for node, steps in new.items():
        known = old.get(node, ())
        if steps is not known and (more := [step for step in steps if step not in known]):
            yield node, more


class Search:
    """Routes of one network to all its edges, with any cables down.

    A switch that loses one of several next hops has the others, at the same distance: nothing else changes.
    So routes are searched again only for destinations to which a switch has lost the last one, which are few;
    and only these bring dependencies that were not there without failures.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._edges = topology.edges()
        self._entries = set(self._edges)
        self._routes: dict[tuple[str, frozenset[int]], Hops] = {}
        self._parted: tuple[frozenset[int], list[tuple[str, str]]] = frozenset(), []
        self._pair: tuple[frozenset[int], dict[str, Hops]] = frozenset(), {}

    def _losses(self, table: Hops, down: frozenset[int]) -> dict[str, list[str]]:
        """The next hops that switches lose."""
        found: dict[str, list[str]] = {}
        if self._parted[0] != down:
            self._parted = down, self.topology.parted(down)
        for a, b in self._parted[1]:
            for node, step in ((a, b), (b, a)):
                if step in table.get(node, ()):
                    found.setdefault(node, []).append(step)
        return found

    def changed(self, down: frozenset[int]) -> list[str]:
        """Destinations to which some switch has no next hop left of those without failures."""
        found = []
        for edge in self._edges:
            table = self.topology.hops(edge)
            losses = self._losses(table, down)
            if any(len(steps) == len(table[node]) for node, steps in losses.items()):
                found.append(edge)
        return found

    def routes(self, edge: str, down: frozenset[int]) -> Hops:
        """All shortest next hops of each switch towards an edge."""
        if not down:
            return self.topology.hops(edge)
        if len(down) < 2:
            found = self._routes.get((edge, down))
            if found is None:
                found = self._routes[edge, down] = self._updated(edge, down)
            return found
        if self._pair[0] != down:  # pairs are asked for in turn, so one of them is kept
            self._pair = down, {}
        if edge not in self._pair[1]:
            self._pair[1][edge] = self._updated(edge, down)
        return self._pair[1][edge]

    def _updated(self, edge: str, down: frozenset[int]) -> Hops:
        """From routes with fewer cables down if possible, or by another search."""
        for fewer in (frozenset[int](), *(down - {each} for each in sorted(down))):
            table = self.routes(edge, fewer)
            losses = self._losses(table, down)
            if all(len(steps) < len(table[node]) for node, steps in losses.items()):
                kept = {
                    node: tuple(step for step in table[node] if step not in steps)
                    for node, steps in losses.items()
                }
                return table | kept
        return self.topology.hops(edge, down)

    @cached_property
    def _usual(self) -> dict[Buffer, dict[Buffer, None]]:
        """Dependencies without failures, also of switches where no packets come by."""
        return dependencies(map(self.topology.hops, self._edges), self.topology.switches)

    @cached_property
    def _has_circles(self) -> bool:
        return bool(find_cycle(self._usual))

    def _added(self, down: frozenset[int], changed: Iterable[str]) -> dict[Buffer, dict[Buffer, None]]:
        """Dependencies over hops that a failure has brought, where packets come by."""
        found: dict[Buffer, dict[Buffer, None]] = {}
        for edge in changed:
            table = self.routes(edge, down)
            for node, more in gained(self.topology.hops(edge), table):
                before = [each for each, steps in table.items() if node in steps]
                if not before and node not in self._entries:
                    continue
                for step in more:
                    for each in before:
                        found.setdefault((each, node), {})[node, step] = None
                    after = found.setdefault((node, step), {})
                    after.update(((step, further), None) for further in table.get(step, ()))
        return found

    def circle(self, down: frozenset[int], changed: Iterable[str]) -> tuple[Buffer, ...]:
        """A circle of buffers with these cables down; empty if there is none."""
        if not self._has_circles:
            added = self._added(down, changed)
            if not _reaches_itself(self._usual, added):
                return ()
        tables = [self.routes(edge, down) for edge in self._edges]
        return find_cycle(dependencies(tables, self._edges))  # type: ignore[return-value]


def _reaches_itself(
    usual: Mapping[Buffer, Iterable[Buffer]], added: Mapping[Buffer, Iterable[Buffer]]
) -> bool:
    """Whether some circle takes an added dependency; `usual` has none."""
    done: set[Buffer] = set()
    state: dict[Buffer, Iterator[Buffer]] = {}
    for start in added:
        if start in done:
            continue
        state = {start: iter((*usual.get(start, ()), *added[start]))}
        while state:
            node, rest = next(reversed(state.items()))
            for other in rest:
                if other in state:
                    return True
                if other not in done:
                    state[other] = iter((*usual.get(other, ()), *added.get(other, ())))
                    break
            else:
                done.add(node)
                del state[node]
    return False
