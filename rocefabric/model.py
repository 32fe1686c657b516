"""A network as its file describes it: switches, hosts, links, traffic classes, goals.

Units are in the names: `_gbps` is 10^9 bits per second, `_m` meters, `_us` and `_ns` time. Buffers are in
bytes, and in cells of the switch where the name says so.
"""

from __future__ import annotations

import dataclasses
import re
import reprlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from .classes import Marking
from .errors import NetworkError
from .reading import Reader, parse_json, parse_toml, read_text

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from .positions import Path

__all__ = [
    "Ecn",
    "Goals",
    "Host",
    "Link",
    "Marking",
    "Network",
    "Pfc",
    "Senders",
    "Switch",
    "checked",
    "judge_numbers",
    "load",
    "parse",
]

#: Bytes of Ethernet, IP, UDP, BTH, ICRC and FCS around the payload of a RoCEv2 packet.
ROCE_HEADERS = 62
#: Preamble and gap between frames: on the wire, not in the buffer.
WIRE_EXTRA = 20

#: What a file may describe.
_MOST_MEMBERS, _MOST_CABLES = 20_000, 100_000

#: As the keys of `dscp_queue` are written.
_DSCPS = {str(dscp) for dscp in range(64)}
#: A cap of 1 kb/s; below it, a CNP takes longer than a simulation can count.
_LEAST_CAP_MBPS = 0.001
_NAME = re.compile(r"\w[\w.-]{0,63}")

_T = TypeVar("_T")


def _at_least(least: float) -> dict[str, Any]:
    return {"least": least}


@dataclass(frozen=True)
class Switch:
    """A switch, or `count` of them that are named alike."""

    name: str
    count: int = field(default=1, metadata=_at_least(1))
    #: All packet memory. A Trident 3 has 32 MiB.
    buffer_bytes: int = field(default=32 << 20, metadata=_at_least(65536))
    cell_bytes: int = field(default=208, metadata=_at_least(32))
    #: Time of a packet through an idle switch, without its own serialization.
    latency_ns: float = field(default=800, metadata=_at_least(0))
    #: Whether ports to hosts classify by UDP port and DSCP, and rewrite the DSCP of everything else.
    boundary: bool = True
    #: Its operating system: what its settings are written for.
    system: str = field(default="sonic", metadata={"one_of": ("sonic", "cumulus", "eos", "junos")})
    #: That system's names of the ports, in the order of the links in the file; a range is
    #: "Ethernet[0-124/4]". By default Ethernet0, Ethernet4, ...; swp1, ...; Ethernet1, ...; et-0/0/0, ...
    interfaces: list[str] = field(default_factory=list)
    #: DSCP to queue, where it differs from the network's. Keys are decimal numbers.
    dscp_queue: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Host:
    """A host, or `count` of them that are named alike."""

    name: str
    count: int = field(default=1, metadata=_at_least(1))
    #: Whether it runs RDMA. What others send to queue 5 is an intrusion.
    roce: bool = True


@dataclass(frozen=True)
class Link:
    """Cables between two groups of switches or hosts."""

    a: str
    b: str
    #: The simulator counts whole picoseconds for a byte: five at 1600G.
    rate_gbps: float = field(metadata={"least": 0.001, "most": 1600})
    length_m: float = field(default=3, metadata=_at_least(0))
    #: "spread" deals the first group's members evenly to the second's, in order; "mesh" joins each with each.
    pattern: str = field(default="spread", metadata={"one_of": ("spread", "mesh")})
    medium: str = field(default="fibre", metadata={"one_of": ("fibre", "aoc", "dac")})
    #: Parallel cables.
    count: int = field(default=1, metadata=_at_least(1))


@dataclass(frozen=True)
class Pfc:
    """Pauses: thresholds and the times in the headroom formula."""

    alpha: float = field(default=0.25, metadata={"least": 1 / 256, "most": 128})
    #: From the threshold to the pause frame, and from its arrival to silence; without waiting for frames.
    response_ns: float = field(default=1500, metadata=_at_least(0))
    #: Largest frame in the network, of any class, without preamble and gap.
    largest_frame: int = field(default=1518, metadata={"least": 64, "most": 16384})
    #: Added to the worked-out headroom.
    margin_percent: float = field(default=10, metadata=_at_least(0))
    #: Propagation in the cable.
    meters_per_us: float = field(default=200, metadata={"least": 100, "most": 300})
    #: After this time without progress, the watchdog empties a paused queue.
    watchdog_ms: int = field(default=200, metadata={"least": 100, "most": 5000})


@dataclass(frozen=True)
class Ecn:
    """Marking thresholds in cells (0: worked out by the planner), and how a chip measures queues.

    The plan shows beside its own what others ship: HPCC's simulator 100 and 400 kB, 20 % at 25G; SONiC 1 and
    2 MiB, 5 %; Onyx and Cumulus Linux 150 and 1500 kB. Given cells are for the slowest ports; faster ones get
    them in proportion.
    """

    kmin_cells: int = field(default=0, metadata=_at_least(0))
    kmax_cells: int = field(default=0, metadata=_at_least(0))
    pmax_percent: float = field(default=0, metadata={"least": 0, "most": 100})
    #: Between two looks at the queue's length. 0: the exact length at each packet.
    poll_us: float = field(default=0, metadata=_at_least(0))
    #: Weight of the newest look in the exponential average.
    weight: float = field(default=1, metadata={"least": 0.001, "most": 1})
    #: When a packet is marked: as it comes into the queue, or as it leaves it (the mark then does not wait
    #: behind the queue).
    mark: str = field(default="arrival", metadata={"one_of": ("arrival", "departure")})
    #: Whether marks are spaced as Linux' RED does it (up to 1/share packets apart, half of that on average),
    #: or drawn for each packet alone.
    spaced_marks: bool = False
    #: Of a receiver, between two notifications of one flow.
    cnp_interval_us: float = field(default=50, metadata=_at_least(0.1))
    #: When a receiver notifies: as soon as a marked packet arrives, if the last notification is an interval
    #: old; or at the end of each interval in which one arrived.
    cnp_sent: str = field(default="arrival", metadata={"one_of": ("arrival", "interval")})


@dataclass(frozen=True)
class Senders:
    """What the simulator's hosts do."""

    #: Packets that one connection may have under way, whatever its rate.
    window: int = field(default=512, metadata={"least": 1, "most": 1 << 20})
    #: Without an acknowledgement for this long, a sender goes back to the last one.
    timeout_us: float = field(default=2000, metadata=_at_least(1))


@dataclass(frozen=True)
class Goals:
    """What the network is for."""

    throughput_percent: float = field(default=95, metadata={"least": 0, "most": 100})
    pauses_per_second: float = field(default=5, metadata=_at_least(0))
    latency_us: float = field(default=80, metadata=_at_least(0.1))
    usual_latency_us: float = field(default=40, metadata=_at_least(0.1))
    cnp_us: float = field(default=3, metadata=_at_least(0.1))
    #: Hosts that send to one host at the same time.
    incast: int = field(default=0, metadata=_at_least(0))


@dataclass(frozen=True)
class Network:
    """Everything in the file. `where` gives `file:line` of a part, for errors that show later."""

    name: str
    mtu: int
    switches: tuple[Switch, ...]
    hosts: tuple[Host, ...]
    links: tuple[Link, ...]
    marking: Marking = field(default_factory=Marking)
    pfc: Pfc = Pfc()
    ecn: Ecn = Ecn()
    goals: Goals = Goals()
    senders: Senders = Senders()
    file: str = "network"
    lines: Mapping[Path, int] = field(default_factory=dict, repr=False, compare=False)

    KINDS: ClassVar[tuple[str, ...]] = ("switches", "hosts", "links")

    def where(self, *path: str | int) -> str:
        """`file:line` of a key, or of the closest table around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.file}:{self.lines.get(path, 1)}"

    @property
    def slowest_gbps(self) -> float:
        """Of all links: usually those of hosts."""
        return min(link.rate_gbps for link in self.links)

    @property
    def frame(self) -> int:
        """Bytes of a full RoCE frame in a buffer."""
        return self.mtu + ROCE_HEADERS

    @property
    def wire(self) -> int:
        """Bytes of a full RoCE frame on the wire, with preamble and gap."""
        return self.frame + WIRE_EXTRA


TABLES: dict[str, Callable[..., Any]] = {
    "marking": Marking,
    "pfc": Pfc,
    "ecn": Ecn,
    "goals": Goals,
    "senders": Senders,
}


class _Reader(Reader):
    """Reads a network."""

    def network(self, raw: dict[str, Any]) -> Network:
        tables = TABLES
        lists: dict[str, Callable[..., Any]] = {"switches": Switch, "hosts": Host, "links": Link}
        for key in raw:
            if key not in {"name", "mtu", *tables, *lists}:
                raise self.fail((key,), f"unknown key {key!r}")
        name, mtu = raw.get("name", self.file), raw.get("mtu", 1024)
        if mtu not in (256, 512, 1024, 2048, 4096):
            raise self.fail(
                ("mtu",), f"mtu = {reprlib.repr(mtu)} is none of RoCE's: 256, 512, 1024, 2048, 4096"
            )
        values: dict[str, Any] = {}
        for key, kind in tables.items():
            if key in raw:
                values[key] = self.table(kind, raw[key], (key,))
        for key, kind in lists.items():
            values[key] = self.rows(kind, raw.get(key, []), key)
            if not values[key]:
                raise NetworkError(f"{self.file}:1: the network has no [[{key}]]")
        network = Network(name=str(name), mtu=mtu, file=self.file, lines=self.lines, **values)
        self.judge(network)
        return network

    def judge(self, network: Network) -> None:
        """What no single key shows: names, queues, thresholds in order."""
        names: dict[str, Path] = {}
        for key in ("switches", "hosts"):
            for at, group in enumerate(getattr(network, key)):
                if not _NAME.fullmatch(group.name):
                    raise self.fail(
                        (key, at, "name"),
                        f"the name {reprlib.repr(group.name)} has more than letters, digits, '_', '-' and "
                        "'.', or more than 64 of them: files are named like it",
                    )
                if group.name in names:
                    other = self.lines.get(names[group.name], 1)
                    raise self.fail((key, at, "name"), f"the name {group.name!r} is taken by line {other}")
                names[group.name] = (key, at)
        for at, switch in enumerate(network.switches):
            for dscp, queue in switch.dscp_queue.items():
                # Written as it is looked up; and `true` is no queue, though Python takes it for 1.
                if dscp not in _DSCPS or type(queue) is not int or queue not in range(8):
                    raise self.fail(
                        ("switches", at, "dscp_queue"),
                        f"dscp_queue: {dscp[:20]} = {reprlib.repr(queue)} is no DSCP below 64 with a queue "
                        "below 8",
                    )
        for at, link in enumerate(network.links):
            for end in ("a", "b"):
                if getattr(link, end) not in names:
                    known = ", ".join(names)
                    raise self.fail(
                        ("links", at, end), f"{end} = {getattr(link, end)!r} is no switch or host ({known})"
                    )
        self.judge_size(network)
        judge_numbers(network)

    def judge_size(self, network: Network) -> None:
        """That the planner ends soon, and fits into memory."""
        counts = {switch.name: switch.count for switch in network.switches}
        counts |= {host.name: host.count for host in network.hosts}
        if sum(counts.values()) > _MOST_MEMBERS:
            raise NetworkError(f"{self.file}:1: there are more than {_MOST_MEMBERS} switches and hosts")
        cables = 0
        for at, link in enumerate(network.links):
            ends = counts[link.a], counts[link.b]
            cables += link.count * (ends[0] * ends[1] if link.pattern == "mesh" else max(ends))
            if cables > _MOST_CABLES:
                raise self.fail(("links", at), f"there are more than {_MOST_CABLES} cables")


def judge_numbers(network: Network) -> None:
    """Numbers that must fit each other.

    :raises NetworkError: with `file:line`, if they do not.
    """
    marking = network.marking
    where = network.where
    if (marking.second_dscp < 0) != (marking.second_queue < 0):
        raise NetworkError(f"{where('marking')}: second_dscp and second_queue belong together")
    classes = marking.lossless()
    if len({each.queue for each in classes} | {marking.cnp_queue, marking.other_queue}) < len(classes) + 2:
        raise NetworkError(f"{where('marking')}: RoCE, CNPs and everything else need a queue each")
    if len({each.dscp for each in classes} | {marking.cnp_dscp, marking.other_dscp}) < len(classes) + 2:
        raise NetworkError(f"{where('marking')}: RoCE, CNPs and everything else need a DSCP each")
    if 0 < marking.cnp_cap_mbps < _LEAST_CAP_MBPS:
        raise NetworkError(
            f"{where('marking', 'cnp_cap_mbps')}: cnp_cap_mbps is 0, for the plan's own, or at least "
            f"{_LEAST_CAP_MBPS:g}"
        )
    if 0 < network.ecn.kmax_cells < network.ecn.kmin_cells:
        raise NetworkError(f"{where('ecn', 'kmax_cells')}: kmax_cells is below kmin_cells")
    if network.pfc.largest_frame < network.frame:
        raise NetworkError(
            f"{where('pfc', 'largest_frame')}: largest_frame is below a RoCE frame of this mtu: "
            f"{network.frame} bytes"
        )


def checked(table: str, old: _T, fields: Mapping[str, object]) -> _T:
    """A table with other values, judged as those of a file.

    :raises NetworkError: if there is no such key, or a value is outside its limits.
    """
    try:
        _Reader("", {}).table(TABLES[table], dict(fields), (table,))
    except NetworkError as error:
        raise NetworkError(str(error).removeprefix(":1: ")) from None
    return dataclasses.replace(old, **fields)  # type: ignore[type-var]


def parse(text: str, file: str = "network") -> Network:
    """Read a network from the text of its file.

    :param file: the name that errors show.
    :raises NetworkError: with `file:line` and what is wrong there.
    """
    raw, lines = parse_toml(text, file)
    return _Reader(file, lines).network(raw)


def load(path: str | os.PathLike[str]) -> Network:
    """Read a network from its TOML file, or from JSON with the same tables if its name ends with `.json`.

    :raises NetworkError: with `file:line` and what is wrong there.
    :raises OSError: if the file cannot be read.
    """
    text, file = read_text(path), str(path)
    if not file.endswith(".json"):
        return parse(text, file)
    raw = parse_json(text, file)
    if not isinstance(raw, dict):
        raise NetworkError(f"{file}:1: a network is an object, with the tables of a TOML file")
    return _Reader(file, {}).network(raw)
