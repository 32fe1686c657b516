"""Which queue each packet is in, at each hop of each path."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .report import Section, Source, Table

if TYPE_CHECKING:
    from .classes import Lossless
    from .model import Network, Switch
    from .topology import Hops, Topology

__all__ = ["Packet", "classify", "dscp_map", "follow", "queue_at", "section"]

ROCE_PORT = 4791


@dataclass(frozen=True)
class Packet:
    """As much of a packet as classification reads."""

    udp_port: int
    dscp: int

    def __str__(self) -> str:
        return f"UDP port {self.udp_port}, DSCP {self.dscp}"


def dscp_map(network: Network) -> dict[int, int]:
    """DSCP to queue inside the network; DSCPs that are not in it go to the queue for everything else."""
    marking = network.marking
    return {marking.cnp_dscp: marking.cnp_queue} | {each.dscp: each.queue for each in marking.lossless()}


def queue_at(network: Network, switch: Switch, dscp: int) -> int:
    """The queue of one switch, whose own map comes first."""
    usual = dscp_map(network).get(dscp, network.marking.other_queue)
    return switch.dscp_queue.get(str(dscp), usual)


def classify(network: Network, packet: Packet, roce: bool) -> Packet:
    """The packet behind a boundary port: only RoCE of RoCE hosts keeps a DSCP with a queue of its own."""
    if roce and packet.udp_port == ROCE_PORT and packet.dscp in dscp_map(network):
        return packet
    return Packet(packet.udp_port, network.marking.other_dscp)


def follow(
    network: Network, topology: Topology, path: tuple[str, ...], packet: Packet
) -> list[tuple[str, int]]:
    """The queue in which a packet waits at each switch of a path between two hosts."""
    roce = topology.hosts[path[0]].roce
    queues = []
    for at, name in enumerate(path[1:-1]):
        switch = topology.switches[name]
        if at == 0 and switch.boundary:
            packet = classify(network, packet, roce)
        queues.append((name, queue_at(network, switch, packet.dscp)))
    return queues


@dataclass(frozen=True)
class _Stray:
    """A packet in a queue where it does not belong."""

    packet: Packet
    queue: int
    #: Whether it is RoCE that has left its queue, or an outsider in one of RoCE's.
    ours: bool


def _strays_at(network: Network, switch: Switch, boundary: bool, roce: bool) -> tuple[_Stray, ...]:
    """What goes wrong at one kind of switch with all kinds of packets.

    :param boundary: of the switch where they came in.
    :param roce: whether the host that sent them runs RDMA.
    """
    own = dscp_map(network)
    found = []
    for dscp in range(64):
        for port in (ROCE_PORT, 53):
            sent = Packet(port, dscp)
            inside = classify(network, sent, roce) if boundary else sent
            queue = queue_at(network, switch, inside.dscp)
            ours = roce and port == ROCE_PORT and dscp in own
            if (queue != own[dscp]) if ours else (queue in own.values()):
                found.append(_Stray(sent, queue, ours))
    return tuple(found)


def _representatives(topology: Topology) -> list[str]:
    """Hosts of one kind at one switch are alike: two of them stand for all."""
    found: dict[tuple[tuple[str, ...], bool], list[str]] = {}
    for name, host in topology.hosts.items():
        alike = found.setdefault((topology.switches_of(name), host.roce), [])
        if len(alike) < 2:
            alike.append(name)
    return [name for alike in found.values() for name in alike]


def _ways(table: Hops, first: str, last: str) -> tuple[int, list[str]]:
    """How many shortest paths there are between two switches, and the switches on them."""
    level, on_them = {first: 1}, {first: None}
    count = 1
    while level and last not in level:
        after: dict[str, int] = {}
        for node, ways in level.items():
            for step in table.get(node, ()):
                after[step] = after.get(step, 0) + ways
        on_them |= dict.fromkeys(after)
        level, count = after, after.get(last, 0)
    return count, [*on_them]


def _strays(network: Network, topology: Topology) -> tuple[int, list[str], list[str]]:
    """Paths looked at; the first RoCE that leaves its queue, and outsider in a queue of RoCE or CNPs."""
    lost: list[str] = []
    intruders: list[str] = []
    count = 0
    known: dict[tuple[str, bool, bool], tuple[_Stray, ...]] = {}
    ways: dict[tuple[str, str], tuple[int, list[str]]] = {}
    ends = _representatives(topology)
    for source, destination in itertools.permutations(ends, 2):
        roce = topology.hosts[source].roce
        for pair in topology.ends(source, destination):
            boundary = topology.switches[pair[0]].boundary
            if pair not in ways:
                ways[pair] = _ways(topology.hops(pair[1]), *pair)
            more, on_them = ways[pair]
            count += more
            for name in on_them:
                key = topology.switches[name].name, boundary, roce
                if key not in known:
                    known[key] = _strays_at(network, topology.switches[name], boundary, roce)
                for stray in known[key]:
                    texts = lost if stray.ours else intruders
                    if not texts:
                        where = f"queue {stray.queue} of {name}"
                        texts.append(f"{stray.packet} from {source} to {destination}: {where}")
    return count, lost, intruders


def _remedy(network: Network, wrong: Lossless, keys: str) -> str:
    """What to change in the network's file."""
    marking = network.marking
    taken = {each.queue for each in marking.lossless()} | {marking.cnp_queue, marking.other_queue}
    ways = [f"{keys}_priority = {wrong.queue}, and the hosts' script maps the DSCP to it"]
    if wrong.priority not in taken:
        ways.append(f"{keys}_queue = {wrong.priority}")
    if wrong.priority == wrong.dscp // 8:
        ways.append(f"a {keys}_dscp from {8 * wrong.queue} to {8 * wrong.queue + 7}")
    return f"set in [marking] {'; or '.join(ways)}"


def _priorities(part: Section, network: Network) -> None:
    """Pauses name priorities: both ends of a cable must mean the same."""
    marking = network.marking
    for each, keys in zip(marking.lossless(), ("roce", "second"), strict=False):
        same = each.priority == each.queue
        part.check(
            f"Hosts and switches pause the same priority for DSCP {each.dscp}",
            same,
            f"both pause {each.queue}"
            if same
            else f"hosts pause priority {each.priority} and switches priority {each.queue}, so neither "
            f"obeys the other and packets are lost: {_remedy(network, each, keys)}",
        )
    paused = {each.priority for each in marking.lossless()}
    for name, dscp, key in (
        ("CNPs", marking.cnp_dscp, "cnp_dscp"),
        ("everything else", marking.other_dscp, "other_dscp"),
    ):
        free = dscp // 8 not in paused
        part.check(
            f"Hosts do not pause {name} with RoCE",
            free,
            f"DSCP {dscp} has priority {dscp // 8}"
            if free
            else f"DSCP {dscp} has priority {dscp // 8}, which is paused: set in [marking] a {key} outside "
            f"{8 * (dscp // 8)} to {8 * (dscp // 8) + 7}",
        )


def _tables(network: Network) -> tuple[Table, Table]:
    marking = network.marking
    classes = [(f"{marking.cnp_dscp}", f"{marking.cnp_queue}", "CNP")]
    classes += [(f"{each.dscp}", f"{each.queue}", "RoCE") for each in marking.lossless()]
    rules = [
        (str(order), f"UDP port {ROCE_PORT}, DSCP {dscp}", f"queue {queue} ({name})")
        for order, (dscp, queue, name) in enumerate(classes, 1)
    ]
    rest = f"DSCP := {marking.other_dscp}, queue {marking.other_queue}"
    rules.append((str(len(rules) + 1), "anything else", rest))
    queues = [(dscp, queue) for dscp, queue, _ in classes] + [("any other", str(marking.other_queue))]
    return (
        Table("Rules on ports to hosts (boundary)", ("order", "match", "action"), tuple(rules)),
        Table("DSCP to queue on all other ports", ("DSCP", "queue"), tuple(queues)),
    )


def section(network: Network, topology: Topology) -> Section:
    """Part 1 of the plan."""
    marking = network.marking
    part = Section("Marking and queues")
    part.tables += _tables(network)
    for each in marking.lossless():
        name = "RoCE" if each.dscp == marking.roce_dscp else "the second class"
        formula = f"4 x DSCP {each.dscp} + ECN-capable 2"
        part.number(f"Traffic class of {name} at hosts", 4 * each.dscp + 2, "", formula, Source.STANDARD)
    paths, lost, intruders = _strays(network, topology)
    own = ", ".join(str(each.queue) for each in marking.lossless())
    part.check(
        f"RoCE stays in queue {own}, CNPs in queue {marking.cnp_queue}",
        not lost,
        lost[0] if lost else f"on {paths} paths, at every hop",
    )
    part.check(
        "Nothing else enters these queues",
        not intruders,
        intruders[0] if intruders else f"128 kinds of packets on {paths} paths",
    )
    _priorities(part, network)
    part.remarks.append(
        "The rules but the last belong on switches of RoCE hosts only; hosts without RoCE get the last alone."
    )
    if len(marking.lossless()) > 1:
        part.remarks.append(
            "Both lossless classes have buffers, headroom and settings of their own; `simulate` runs one."
        )
    return part
