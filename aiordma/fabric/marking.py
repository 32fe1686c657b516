"""Which queue each packet is in, at each hop of each path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .report import Section, Source, Table

if TYPE_CHECKING:
    from .model import Network
    from .topology import Topology

__all__ = ["Packet", "classify", "dscp_map", "follow", "section"]

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
    return {marking.cnp_dscp: marking.cnp_queue, marking.roce_dscp: marking.roce_queue}


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
        usual = dscp_map(network).get(packet.dscp, network.marking.other_queue)
        queues.append((name, switch.dscp_queue.get(str(packet.dscp), usual)))
    return queues


def _strays(network: Network, topology: Topology) -> tuple[int, list[str], list[str]]:
    """Paths looked at, RoCE that leaves its queue, and outsiders in the queues of RoCE and CNPs."""
    marking = network.marking
    own = {marking.roce_dscp: marking.roce_queue, marking.cnp_dscp: marking.cnp_queue}
    lost, intruders = [], []
    count = 0
    representatives: dict[tuple[str, bool], list[str]] = {}
    # Hosts of one kind at one switch are alike: two of them stand for all.
    for name, host in topology.hosts.items():
        alike = representatives.setdefault((topology.switch_of(name), host.roce), [])
        if len(alike) < 2:
            alike.append(name)
    ends = [name for alike in representatives.values() for name in alike]
    for source in ends:
        for destination in ends:
            for path in topology.paths(source, destination) if source != destination else ():
                count += 1
                for dscp in range(64):
                    for port in (ROCE_PORT, 53):
                        packet = Packet(port, dscp)
                        queues = follow(network, topology, path, packet)
                        ours = topology.hosts[source].roce and port == ROCE_PORT and dscp in own
                        for switch, queue in queues:
                            text = f"{packet} from {source} to {destination}: queue {queue} of {switch}"
                            if ours and queue != own[dscp]:
                                lost.append(text)
                            elif not ours and queue in own.values():
                                intruders.append(text)
    return count, lost, intruders


def section(network: Network, topology: Topology) -> Section:
    """Part 1 of the plan."""
    marking = network.marking
    part = Section("Marking and queues")
    part.tables.append(
        Table(
            "Rules on ports to hosts (boundary)",
            ("order", "match", "action"),
            (
                ("1", f"UDP port {ROCE_PORT}, DSCP {marking.cnp_dscp}", f"queue {marking.cnp_queue} (CNP)"),
                (
                    "2",
                    f"UDP port {ROCE_PORT}, DSCP {marking.roce_dscp}",
                    f"queue {marking.roce_queue} (RoCE)",
                ),
                ("3", "anything else", f"DSCP := {marking.other_dscp}, queue {marking.other_queue}"),
            ),
        )
    )
    part.tables.append(
        Table(
            "DSCP to queue on all other ports",
            ("DSCP", "queue"),
            (
                (str(marking.cnp_dscp), str(marking.cnp_queue)),
                (str(marking.roce_dscp), str(marking.roce_queue)),
                ("any other", str(marking.other_queue)),
            ),
        )
    )
    tclass = 4 * marking.roce_dscp + 2
    formula = f"4 x DSCP {marking.roce_dscp} + ECN-capable 2"
    part.number("Traffic class of RoCE at hosts", tclass, "", formula, Source.STANDARD)
    paths, lost, intruders = _strays(network, topology)
    part.check(
        f"RoCE stays in queue {marking.roce_queue}, CNPs in queue {marking.cnp_queue}",
        not lost,
        lost[0] if lost else f"on {paths} paths, at every hop",
    )
    part.check(
        "Nothing else enters these queues",
        not intruders,
        intruders[0] if intruders else f"128 kinds of packets on {paths} paths",
    )
    part.remarks.append(
        "Rules 1 and 2 belong on switches of RoCE hosts only; hosts without RoCE get rule 3 alone."
    )
    return part
