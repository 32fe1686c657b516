"""The graph of a network: every port, every shortest route, and what failures make of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, product
from typing import TYPE_CHECKING, TypeAlias

from .errors import NetworkError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from .model import Host, Link, Network, Switch

__all__ = ["Cable", "Port", "Topology", "build"]

#: Next hops of each node towards one destination.
Hops: TypeAlias = "dict[str, tuple[str, ...]]"


@dataclass(frozen=True)
class Cable:
    """One cable between two nodes."""

    a: str
    b: str
    link: Link

    def __str__(self) -> str:
        return f"{self.a} - {self.b}"


@dataclass(frozen=True)
class Port:
    """One end of a cable: where `node` sends to `peer`."""

    node: str
    peer: str
    link: Link


@dataclass
class Topology:
    """Nodes by name, with their ports in the order of the file."""

    switches: dict[str, Switch]
    hosts: dict[str, Host]
    cables: list[Cable]
    ports: dict[str, list[Port]] = field(default_factory=dict)
    #: Routes that were worked out, by destination: without failures, and with one cable down.
    _routes: dict[tuple[str, frozenset[int]], Hops] = field(default_factory=dict, repr=False)
    _distances: dict[str, dict[str, int]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.ports = {name: [] for name in (*self.switches, *self.hosts)}
        for cable in self.cables:
            self.ports[cable.a].append(Port(cable.a, cable.b, cable.link))
            self.ports[cable.b].append(Port(cable.b, cable.a, cable.link))

    def edges(self) -> list[str]:
        """Switches that have hosts."""
        return [name for name in self.switches if any(port.peer in self.hosts for port in self.ports[name])]

    def fabric_cables(self) -> list[Cable]:
        """Cables between switches."""
        return [cable for cable in self.cables if cable.a in self.switches and cable.b in self.switches]

    @cached_property
    def beside(self) -> dict[str, dict[str, int]]:
        """Switches next to each switch, in the order of the file, with the number of cables to each."""
        found: dict[str, dict[str, int]] = {name: {} for name in self.switches}
        for cable in self.fabric_cables():
            for one, other in ((cable.a, cable.b), (cable.b, cable.a)):
                found[one][other] = found[one].get(other, 0) + 1
        return found

    def parted(self, down: frozenset[int]) -> list[tuple[str, str]]:
        """Pairs of switches that have no cable left when these (by index in `cables`) are down."""
        ends = [(self.cables[index].a, self.cables[index].b) for index in sorted(down)]
        lost = [tuple(sorted(pair)) for pair in ends]
        return [
            pair
            for at, pair in enumerate(ends)
            if lost[at] not in lost[:at] and lost.count(lost[at]) == self.beside[pair[0]][pair[1]]
        ]

    def neighbours(self, down: frozenset[int] = frozenset()) -> Mapping[str, Iterable[str]]:
        """Switches next to each switch, without the cables (by index in `cables`) that are down."""
        found: dict[str, Iterable[str]] = dict(self.beside)
        for one, other in self.parted(down):
            found[one] = [each for each in found[one] if each != other]
            found[other] = [each for each in found[other] if each != one]
        return found

    def hops(self, to: str, down: frozenset[int] = frozenset()) -> Hops:
        """All shortest next hops of each switch towards the switch `to`."""
        key = to, down
        if key not in self._routes:
            found = self._search(to, down)
            if len(down) > 1:
                return found
            self._routes[key] = found
        return self._routes[key]

    def _search(self, to: str, down: frozenset[int]) -> Hops:
        beside = self.neighbours(down)
        distance = {to: 0}
        waiting = deque([to])
        while waiting:
            node = waiting.popleft()
            for other in beside[node]:
                if other not in distance:
                    distance[other] = distance[node] + 1
                    waiting.append(other)
        return {
            node: tuple(other for other in beside[node] if distance.get(other, -1) == distance[node] - 1)
            for node in distance
            if node != to
        }

    def distances(self, to: str) -> dict[str, int]:
        """Cables between each switch and the switch `to`."""
        if to not in self._distances:
            found = self._distances[to] = {to: 0}
            # Routes are in the order of the search: what comes next is known already.
            for node, steps in self.hops(to).items():
                found[node] = found[steps[0]] + 1
        return self._distances[to]

    @cached_property
    def longest(self) -> tuple[str, ...]:
        """One of the shortest paths between the two hosts that are farthest apart."""
        ends = {self.switches_of(host): host for host in self.hosts}
        far = [(self._apart(one, other), one, other) for one in ends for other in ends if one != other]
        if not far:
            source, target = list(self.hosts)[:2]
            return next(self.paths(source, target))
        _, one, other = max(far, key=lambda each: each[0])
        return next(self.paths(ends[one], ends[other]))

    def _apart(self, ones: Iterable[str], others: Iterable[str]) -> int:
        """Cables between the closest of two groups of switches; -1: there is no path."""
        pairs = product(ones, others)
        return min(
            (self.distances(other)[one] for one, other in pairs if one in self.distances(other)), default=-1
        )

    def switches_of(self, host: str) -> tuple[str, ...]:
        """The switches that a host is connected to, each once."""
        return tuple(dict.fromkeys(port.peer for port in self.ports[host]))

    def ends(self, source: str, target: str) -> list[tuple[str, str]]:
        """The first and the last switch of all shortest paths between two hosts, whichever ports they take.

        So traffic stays on its rail where rails are not joined, or a switch has both hosts.
        """
        ones, others = self.switches_of(source), self.switches_of(target)
        least = self._apart(ones, others)
        return [pair for pair in product(ones, others) if self.distances(pair[1]).get(pair[0]) == least]

    def paths(self, source: str, destination: str) -> Iterator[tuple[str, ...]]:
        """All shortest paths between two hosts, both included."""
        for first, last in self.ends(source, destination):
            towards = self.hops(last)
            waiting: list[tuple[str, ...]] = [(first,)]
            while waiting:
                path = waiting.pop()
                if path[-1] == last:
                    yield (source, *path, destination)
                else:
                    waiting += [(*path, step) for step in towards.get(path[-1], ())]


def _members(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}{number}" for number in range(1, count + 1)]


def build(network: Network) -> Topology:
    """Expand the groups of a network's file.

    :raises NetworkError: if a host has no switch, or two hosts cannot reach each other.
    """
    switches = {name: each for each in network.switches for name in _members(each.name, each.count)}
    hosts = {name: each for each in network.hosts for name in _members(each.name, each.count)}
    groups = {each.name: _members(each.name, each.count) for each in network.switches}
    groups |= {each.name: _members(each.name, each.count) for each in network.hosts}
    cables: list[Cable] = []
    pairs: list[tuple[str, str]]
    for at, link in enumerate(network.links):
        ones, others = groups[link.a], groups[link.b]
        if link.pattern == "mesh":
            pairs = [*(combinations(ones, 2) if link.a == link.b else product(ones, others))]
        elif link.a == link.b:
            raise NetworkError(
                f'{network.where("links", at)}: {link.a!r} cannot be spread over itself; the pattern "mesh" '
                "joins its members"
            )
        else:
            if len(ones) < len(others) or len(ones) % len(others):
                raise NetworkError(
                    f"{network.where('links', at)}: {len(ones)} of {link.a!r} cannot be spread evenly over "
                    f"{len(others)} of {link.b!r}"
                )
            share = len(ones) // len(others)
            pairs = [(one, others[index // share]) for index, one in enumerate(ones)]
        if not pairs:
            raise NetworkError(f"{network.where('links', at)}: {link.a!r} has one member: it needs no mesh")
        cables += [Cable(one, other, link) for one, other in pairs for _ in range(link.count)]
    names = [name for group in groups.values() for name in group]
    if len(set(names)) < len(names):
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise NetworkError(f"{network.where()}: there are two of the name {twice!r}; rename a group")
    topology = Topology(switches, hosts, cables)
    _judge(network, topology)
    return topology


def _judge(network: Network, topology: Topology) -> None:
    if len(topology.hosts) < 2:
        raise NetworkError(f"{network.where('hosts', 0)}: a network has two hosts at least")
    for at, switch in enumerate(network.switches):
        for name in _members(switch.name, switch.count):
            if not topology.ports[name]:
                raise NetworkError(f"{network.where('switches', at)}: {name} has no link")
    for at, group in enumerate(network.hosts):
        for name in _members(group.name, group.count):
            peers = [port.peer for port in topology.ports[name]]
            if not peers or any(peer not in topology.switches for peer in peers):
                raise NetworkError(f"{network.where('hosts', at)}: {name} has no link to a switch")
    ends = dict.fromkeys(map(topology.switches_of, topology.hosts))
    parts: dict[str, str] = {}
    for edge in topology.edges():
        if edge not in parts:
            parts |= dict.fromkeys(topology.distances(edge), edge)
    joined = {frozenset(parts[switch] for switch in switches): switches for switches in ends}
    for one, other in combinations(joined, 2):
        if not one & other:
            pair = sorted((joined[one][0], joined[other][0]))
            raise NetworkError(f"{network.where('links', 0)}: no path between {pair[0]} and {pair[1]}")
