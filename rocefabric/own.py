"""Traffic that a file describes: transfers between hosts and groups, broken cables, slow hosts."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .reading import Reader, parse_toml, read_text
from .simulate import ENDLESS, Failure, Loop, Traffic, Transfer
from .traffic import MODELS

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from .topology import Topology

__all__ = ["Own", "load", "make", "parse"]

#: Stores name files like it.
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}", re.ASCII)
_MOST_TRANSFERS, _MOST_LOOPS = 100_000, 1000
_LONGEST_US = 1e7


@dataclass(frozen=True)
class Flows:
    """One table of `[[transfers]]`: from each source to each target, without those to itself."""

    #: A host, a group of hosts, or `"*"` for all with RoCE.
    source: str
    target: str
    #: Of each transfer. By default it never ends.
    bytes: int = field(default=ENDLESS, metadata={"least": 1, "most": ENDLESS})
    start_us: float = field(default=0, metadata={"least": 0, "most": _LONGEST_US})
    #: How often, and with how much time between two beginnings.
    times: int = field(default=1, metadata={"least": 1, "most": _MOST_TRANSFERS})
    every_us: float = field(default=0, metadata={"least": 0, "most": _LONGEST_US})
    #: The lossy class and TCP instead of RoCE.
    tcp: bool = False


@dataclass(frozen=True)
class Cut:
    """One table of `[[failures]]`: the first cable between two switches breaks."""

    a: str
    b: str
    at_us: float = field(default=0, metadata={"least": 0, "most": _LONGEST_US})
    #: Until routes have changed.
    converge_us: float = field(default=50, metadata={"least": 0, "most": _LONGEST_US})


@dataclass(frozen=True)
class Circle:
    """One table of `[[loops]]`: routes that send packets around, as while they change."""

    source: str
    target: str
    #: Switches, in the order in which packets pass them.
    circle: list[str]
    at_us: float = field(default=0, metadata={"least": 0, "most": _LONGEST_US})
    for_us: float = field(default=_LONGEST_US, metadata={"least": 0, "most": _LONGEST_US})
    #: Switches that a packet can still pass when it comes to the circle: hosts send with 64.
    ttl: int = field(default=64, metadata={"least": 1, "most": 255})


@dataclass(frozen=True)
class Slow:
    """One table of `[[slow]]`: a host that takes packets more slowly than they arrive."""

    host: str
    gbps: float = field(metadata={"least": 0.001, "most": 100_000})


@dataclass(frozen=True)
class General:
    """The keys at the top."""

    name: str = "own"
    duration_us: float = field(default=2000, metadata={"least": 1, "most": _LONGEST_US})
    #: Hosts whose incoming ports are judged by the goal for throughput.
    busy: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Own:
    """Everything in the file."""

    general: General
    flows: tuple[Flows, ...]
    cuts: tuple[Cut, ...]
    slow: tuple[Slow, ...]
    circles: tuple[Circle, ...]
    reader: Reader


def parse(text: str, file: str = "traffic") -> Own:
    """Read traffic from the text of its file.

    :raises NetworkError: with `file:line` and what is wrong there.
    """
    raw, lines = parse_toml(text, file)
    reader = Reader(file, lines)
    lists: dict[str, Any] = {"transfers": Flows, "failures": Cut, "slow": Slow, "loops": Circle}
    rows = {key: reader.rows(kind, raw.pop(key, []), key) for key, kind in lists.items()}
    general = reader.table(General, raw, ("traffic",))
    if not _NAME.fullmatch(general.name):
        raise reader.fail(("name",), "name is no name of small letters, digits and '-', 64 of them at most")
    if general.name in MODELS:
        raise reader.fail(("name",), f"a model that comes with the simulator has the name {general.name!r}")
    if not rows["transfers"]:
        raise reader.fail((), "the traffic has no [[transfers]]")
    return Own(general, rows["transfers"], rows["failures"], rows["slow"], rows["loops"], reader)


def load(path: str | os.PathLike[str]) -> Own:
    """Read traffic from its TOML file.

    :raises NetworkError: with `file:line` and what is wrong there.
    :raises OSError: if the file cannot be read.
    """
    return parse(read_text(path), str(path))


def _hosts(own: Own, topology: Topology, name: str, *path: str | int) -> list[str]:
    if name == "*":
        return [host for host, group in topology.hosts.items() if group.roce]
    if name in topology.hosts:
        return [name]
    if found := [host for host, group in topology.hosts.items() if group.name == name]:
        return found
    raise own.reader.fail(path, f"there is no host and no group of hosts {name[:64]!r}")


def _transfers(own: Own, topology: Topology) -> Iterator[Transfer]:
    for at, flows in enumerate(own.flows):
        sources, targets = (
            _hosts(own, topology, getattr(flows, end), "transfers", at, end) for end in ("source", "target")
        )
        if sources == targets and len(sources) == 1:
            raise own.reader.fail(("transfers", at), f"{sources[0]} would send to itself")
        if flows.times * len(sources) * len(targets) > 2 * _MOST_TRANSFERS:
            raise own.reader.fail(("transfers", at), f"these are more than {_MOST_TRANSFERS} transfers")
        for turn in range(flows.times):
            start = flows.start_us + turn * flows.every_us
            for source in sources:
                for target in targets:
                    if source != target:
                        yield Transfer(source, target, flows.bytes, start, not flows.tcp)


def _failures(own: Own, topology: Topology) -> Iterator[Failure]:
    places: dict[frozenset[str], int] = {}
    for at, cable in enumerate(topology.fabric_cables()):
        places.setdefault(frozenset((cable.a, cable.b)), at)
    for at, cut in enumerate(own.cuts):
        ends = frozenset((cut.a, cut.b))
        if ends not in places:
            text = f"there is no cable between switches {cut.a[:64]!r} and {cut.b[:64]!r}"
            raise own.reader.fail(("failures", at), text)
        yield Failure(cut.at_us, places[ends], cut.converge_us)


def _loops(own: Own, topology: Topology) -> Iterator[Loop]:
    for at, each in enumerate(own.circles):
        around = each.circle
        if len(around) < 2 or len(set(around)) < len(around) or len(around) > 64:
            raise own.reader.fail(("loops", at, "circle"), "a circle has 2 to 64 switches, each once")
        for one, other in zip(around, [*around[1:], around[0]], strict=True):
            if other not in topology.beside.get(one, {}):
                text = f"there is no cable between switches {one[:64]!r} and {other[:64]!r}"
                raise own.reader.fail(("loops", at, "circle"), text)
        sources, targets = (
            _hosts(own, topology, getattr(each, end), "loops", at, end) for end in ("source", "target")
        )
        if len(sources) * len(targets) > _MOST_LOOPS:
            raise own.reader.fail(("loops", at), f"these are more than {_MOST_LOOPS} pairs of hosts")
        for source in sources:
            for target in targets:
                if source != target:
                    yield Loop(source, target, tuple(around), each.at_us, each.for_us, each.ttl)


def make(own: Own, topology: Topology) -> Traffic:
    """The traffic in one network.

    :raises NetworkError: with `file:line`, if the network has no such hosts or cables, or these are too many
        transfers.
    """
    transfers = []
    for transfer in _transfers(own, topology):
        transfers.append(transfer)
        if len(transfers) > _MOST_TRANSFERS:
            raise own.reader.fail((), f"there are more than {_MOST_TRANSFERS} transfers")
    loops = list(itertools.islice(_loops(own, topology), _MOST_LOOPS + 1))
    if len(loops) > _MOST_LOOPS:
        raise own.reader.fail((), f"there are more than {_MOST_LOOPS} pairs of hosts in [[loops]]")
    drain = {}
    for at, slow in enumerate(own.slow):
        for host in _hosts(own, topology, slow.host, "slow", at, "host"):
            drain[host] = slow.gbps
    busy: list[str] = []
    for name in own.general.busy:
        busy += _hosts(own, topology, name, "busy")
    return Traffic(
        own.general.name,
        tuple(transfers),
        own.general.duration_us,
        tuple(_failures(own, topology)),
        drain,
        tuple(dict.fromkeys(busy)),
        tuple(loops),
    )
