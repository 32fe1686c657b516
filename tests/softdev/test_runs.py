"""Packets that leave as one over IPv4 to another host (roce/runs.h): found out, used, and given up again.

Between two network namespaces. What tells is the bytes that arrive and the counters of both ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import socket
import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.softdev.namespaces import Host, cabled_hosts
from tests.softdev.test_capture import tshark
from tests.vm.wire.ends import MTU, SOFT, End, gid, namespaced, run
from tests.world import pyverbs_is_here

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pyverbs_is_here, pytest.mark.xdist_group("namespaces"), pytest.mark.slow]

LENGTH = 64 << 10
ROUNDS = 40
PACKETS = ROUNDS * LENGTH // 1024
READS = 16
TRANSFERS = 300  # at most
SIOCETHTOOL, ETHTOOL_STSO, ETHTOOL_SGRO = 0x8946, 0x1F, 0x2C  # linux/sockios.h, linux/ethtool.h


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    with cabled_hosts() as made:
        yield made


def ethtool(host: Host, command: int, value: int) -> None:
    """One of the old on-off settings of the cable's end there."""
    data = ctypes.create_string_buffer(struct.pack("=II", command, value))
    with namespaced(host.namespace), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, SIOCETHTOOL, struct.pack("16sP16x", b"cable", ctypes.addressof(data)))


class Pair(NamedTuple):
    left: End
    right: End
    qpn: int
    """The left one's."""
    right_qpn: int

    def write(self) -> None:
        self.left.fill(0, LENGTH, 3)
        done = self.left.write_many(self.qpn, ROUNDS, LENGTH, self.right.addr, self.right.rkey)
        assert done == ROUNDS
        assert self.right.digest(0, LENGTH) == self.left.digest(0, LENGTH)

    def read(self) -> None:
        self.right.fill(0, LENGTH, 4)
        for first in range(0, ROUNDS, READS):
            count = min(READS, ROUNDS - first)
            for _ in range(count):
                remote = {"raddr": self.right.addr, "rkey": self.right.rkey}
                self.left.post(self.qpn, "read", pieces=[(LENGTH, LENGTH)], **remote)
            done = self.left.poll(count)
            assert [wc["status"] for wc in done] == [0] * count
        assert self.left.digest(LENGTH, LENGTH) == self.right.digest(0, LENGTH)

    def send(self) -> None:
        """So slowly that none is lost for want of room: no packet is sent again."""
        self.left.fill(0, LENGTH, 5)
        for number in range(ROUNDS):
            self.right.receive(self.right_qpn, number, length=LENGTH)
            self.left.post(self.qpn, "send", pieces=[(0, LENGTH)])
            for end in (self.left, self.right):
                assert [wc["status"] for wc in end.poll(1)] == [0]
        assert self.right.digest(0, LENGTH) == self.left.digest(0, LENGTH)

    def transfer(self, what: str) -> None:
        getattr(self, what)()

    def sender(self, what: str) -> End:
        return self.right if what == "read" else self.left

    def receiver(self, what: str) -> End:
        return self.left if what == "read" else self.right


@contextlib.contextmanager
def connected(left: End, right: End, hosts: tuple[Host, Host], kind: str = "rc") -> Iterator[Pair]:
    sides = [(left, hosts[0], left.make(kind)), (right, hosts[1], right.make(kind))]
    for (end, here, qpn), (_, there, to_qpn) in (sides, sides[::-1]):
        numbers = {"sq_psn": 0xFFFFF0, "rq_psn": 0xFFFFF0, "mtu": MTU[1024], "timeout": 17}
        end.connect(qpn, gid=gid(here.address), to=gid(there.address), to_qpn=to_qpn, **numbers)
    yield Pair(left, right, sides[0][2], sides[1][2])
    for end, _, qpn in sides:
        end.close(qpn)


@contextlib.contextmanager
def opened(library: Path, hosts: tuple[Host, Host], environ: dict[str, str] | None = None) -> Iterator[Pair]:
    with (
        End(SOFT, environ or {}, library, hosts[0].namespace) as left,
        End(SOFT, environ or {}, library, hosts[1].namespace) as right,
        connected(left, right, hosts) as pair,
    ):
        yield pair


BOTH = pytest.mark.parametrize("what", ["write", "read"])


def until(pair: Pair, what: str, runs: int) -> int:
    """Transfers, until one of them has so many runs. Returns how many it has."""
    for _ in range(TRANSFERS):
        before = pair.sender(what).counters()["runs"]
        pair.transfer(what)
        found: int = pair.sender(what).counters()["runs"] - before
        if found >= runs:
            return found
    message = f"{what}: {TRANSFERS} transfers, and never {runs} runs in one"
    raise AssertionError(message)


@BOTH
def test_found_out(library: Path, hosts: tuple[Host, Host], what: str) -> None:
    """Most packets leave with others before long, and all of them are right where they arrive."""
    with opened(library, hosts) as pair:
        assert until(pair, what, ROUNDS // 2) < PACKETS / 4
        assert pair.receiver(what).counters()["bad_icrc"] == 0


@BOTH
@pytest.mark.parametrize("merges", [False, True], ids=["split", "split and merged"])
def test_split_on_the_way(library: Path, hosts: tuple[Host, Host], what: str, merges: bool) -> None:
    """The sender's end of the cable makes packets of runs, and the receiver's end makes pieces of those."""
    for host in hosts:
        run("ip", "-n", host.namespace, "link", "set", "cable", "gso_max_segs", "1")
        if merges:
            ethtool(host, ETHTOOL_STSO, 0)  # veth merges nothing from an end that has it
            ethtool(host, ETHTOOL_SGRO, 1)
    with opened(library, hosts) as pair:
        until(pair, what, ROUNDS // 2)
        assert pair.receiver(what).counters()["bad_icrc"] == 0


@BOTH
def test_numbered_otherwise(library: Path, hosts: tuple[Host, Host], what: str) -> None:
    """Nothing behind the first of a run arrives: after a few trials packets leave one by one."""
    with opened(library, hosts, {"SOFTDEV_FAULTS": "wire_renumber=1"}) as pair:
        while pair.sender(what).counters()["runs"] < 3:
            pair.transfer(what)
        assert pair.receiver(what).counters()["bad_icrc"] > 0
        for _ in range(8):
            pair.transfer(what)
        # Three trials, then three each time that a pause, which doubles, is over; four minutes' are 27.
        assert pair.sender(what).counters()["runs"] <= 30


def test_unreliable_relies_on_others(library: Path, hosts: tuple[Host, Host]) -> None:
    """Nobody says what became of a UC packet: it goes by itself until an RC connection has shown more."""
    with (
        opened(library, hosts) as reliable,
        connected(reliable.left, reliable.right, hosts, "uc") as unreliable,
    ):
        unreliable.send()
        back = unreliable._replace(
            left=unreliable.right, right=unreliable.left, qpn=unreliable.right_qpn, right_qpn=unreliable.qpn
        )
        back.send()  # from the port of one of ours
        unreliable.send()
        assert reliable.left.counters()["runs"] == 0
        for _ in range(TRANSFERS):
            reliable.write()
            before = reliable.left.counters()["runs"]
            unreliable.send()
            if reliable.left.counters()["runs"] > before:
                break
        else:
            pytest.fail(f"{TRANSFERS} transfers, and never a run")
        assert reliable.right.counters()["bad_icrc"] == 0


def packets(capture: bytes) -> Iterator[bytes]:
    """Of a pcapng file, from the IP header on (enhanced packet blocks)."""
    at = 0
    while at < len(capture):
        kind, length = struct.unpack_from("=II", capture, at)
        if kind == 6:
            (size,) = struct.unpack_from("=I", capture, at + 20)
            yield capture[at + 28 : at + 28 + size]
        at += length


def icrc(packet: bytes) -> bytes:
    """What an IPv4 packet's should be (IBTA annex A17.3.3): ones where routers may change it."""
    masked = bytearray(packet[:-4])
    for at in (1, 8, 10, 11, 26, 27, 32):  # service, TTL, checksums, congestion
        masked[at] = 0xFF
    return zlib.crc32(b"\xff" * 8 + masked).to_bytes(4, "little")


@BOTH
def test_captured(library: Path, hosts: tuple[Host, Host], tmp_path: Path, what: str) -> None:
    """Both ends' captures have the identifications that the checksums are for."""
    with opened(library, hosts, {"SOFTDEV_CAPTURE": str(tmp_path / "%.pcapng")}) as pair:
        until(pair, what, ROUNDS // 2)
    captures = list(tmp_path.glob("*.pcapng"))
    assert len(captures) == 2
    for capture in captures:
        numbers = set()
        for packet in packets(capture.read_bytes()):
            numbers.add(int.from_bytes(packet[4:6]))
            assert packet[-4:] == icrc(packet)
        assert {0, 1, 2} <= numbers < set(range(64))
        assert tshark(capture, "-Y", "_ws.malformed || _ws.expert.severity >= error") == []
