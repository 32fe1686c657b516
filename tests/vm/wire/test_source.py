"""Which port the software device's packets leave from, and with what in their IP headers."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.cable import ADDRESSES

from .ends import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .ends import End, Side

ETH_P_ALL = 3  # linux/if_ether.h
ROCE = 4791
OWN = range(24791, 24791 + 1024)  # of processes that find each other by it
MESSAGES = 5


class Header(NamedTuple):
    port: int
    dscp: int
    number: tuple[int, int] | None
    """IPv4: identification, and flags with the fragment offset."""


def header(packet: bytes) -> tuple[str, Header] | None:
    """Source address and the rest of a packet to port 4791."""
    if packet[0] >> 4 == 4 and packet[9] == socket.IPPROTO_UDP:
        source, at = socket.inet_ntop(socket.AF_INET, packet[12:16]), 20
        traffic_class, number = packet[1], struct.unpack_from("!HH", packet, 4)
    elif packet[0] >> 4 == 6 and packet[6] == socket.IPPROTO_UDP:
        source, at = socket.inet_ntop(socket.AF_INET6, packet[8:24]), 40
        traffic_class, number = (packet[0] << 4 | packet[1] >> 4) & 0xFF, None
    else:
        return None
    port, to = struct.unpack_from("!HH", packet, at)
    return (source, Header(port, traffic_class >> 2, number)) if to == ROCE else None


@pytest.fixture
def sniffer(cable: None) -> Iterator[socket.socket]:
    """At rxe's end of the cable."""
    kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
    with socket.socket(socket.AF_PACKET, kind, socket.htons(ETH_P_ALL)) as sock:
        sock.bind(("cable", ETH_P_ALL))
        yield sock


def from_soft(sniffer: socket.socket, family: str) -> list[Header]:
    found: list[Header] = []
    while True:
        try:
            packet = sniffer.recv(1 << 16)
        except BlockingIOError:
            return found
        parsed = header(packet)
        if parsed and parsed[0] == ADDRESSES[family][1]:
            found.append(parsed[1])


def there_and_back(soft: Side, rxe: Side) -> None:
    for sender, receiver in ((soft, rxe), (rxe, soft)):
        receiver.receive(1)
        sender.post("send", pieces=[(0, 64)])
        assert sender.completion()["status"] == 0
        assert receiver.completion()["status"] == 0


@pytest.mark.parametrize(("traffic_class", "dscp"), [(0, 46), (40, 10)], ids=["usual", "chosen"])
def test_after_the_first_answer_an_address_has_a_port_of_its_own(
    ends: dict[str, End], family: str, sniffer: socket.socket, traffic_class: int, dscp: int
) -> None:
    soft, rxe = connect(ends["soft"], ends["rxe"], family, traffic_class=traffic_class)
    there_and_back(soft, rxe)
    first = from_soft(sniffer, family)
    for _ in range(MESSAGES):
        there_and_back(soft, rxe)
    rest = from_soft(sniffer, family)
    assert first[0].port == ROCE  # a peer of ours would know it by that
    ports = {seen.port for seen in rest}
    assert len(ports) == 1
    assert ports.isdisjoint({ROCE, *OWN})
    assert len(rest) >= 2 * MESSAGES  # a message and an acknowledgement each
    assert {seen.dscp for seen in first + rest} == {dscp}
    # What the ICRC was computed for, and what rxe does not check: RoCEv2 is never fragmented.
    assert {seen.number for seen in first + rest} == ({(0, 0x4000)} if family == "ipv4" else {None})
    for side in (soft, rxe):
        side.close()
