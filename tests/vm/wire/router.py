"""A slow router that marks packets (RED with ECN) between two software devices, and what its queue does."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from .ends import MTU, SOFT, End, gid, namespaced, run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The router's slow side, slow enough that an emulated sender can fill it. RED marks from 30 kB of queue on.
BITS_PER_SECOND = 16_000_000
RED = "limit 1000000 min 30000 max 90000 avpkt 1100 burst 28 bandwidth 16mbit probability 0.1 ecn".split()
LENGTH = 64 << 10
LEFT, RIGHT = "10.79.0.2", "10.79.1.2"

# linux/rtnetlink.h, linux/pkt_sched.h, linux/gen_stats.h
NETLINK_ROUTE, RTM_GETQDISC, NLM_F_REQUEST, NLM_F_DUMP, NLMSG_DONE = 0, 38, 1, 0x300, 3
TCA_KIND, TCA_STATS2, TCA_STATS_BASIC, TCA_STATS_QUEUE = 1, 7, 1, 3


@contextlib.contextmanager
def router() -> Iterator[None]:
    """Namespaces left - middle - right."""
    for name in ("left", "middle", "right"):
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "set", "lo", "up")
    for number, name in enumerate(("left", "right")):
        # From inside: where this runs, another device may have the name.
        cable = ["ip", "-n", name, "link", "add", "cable", "type", "veth"]
        run(*cable, "peer", "name", name, "netns", "middle")
        run("ip", "-n", name, "addr", "add", f"10.79.{number}.2/24", "dev", "cable")
        run("ip", "-n", name, "link", "set", "cable", "up")
        run("ip", "-n", name, "route", "add", "default", "via", f"10.79.{number}.1")
        run("ip", "-n", "middle", "addr", "add", f"10.79.{number}.1/24", "dev", name)
        run("ip", "-n", "middle", "link", "set", name, "up")
    run("ip", "netns", "exec", "middle", "sysctl", "-qw", "net.ipv4.ip_forward=1")
    tc = ["tc", "-n", "middle", "qdisc", "add", "dev", "right"]
    run(*tc, "root", "handle", "1:", "tbf", "rate", str(BITS_PER_SECOND), "burst", "5k", "limit", "1000000")
    run(*tc, "parent", "1:", "handle", "2:", "red", *RED)
    try:
        yield
    finally:
        for name in ("left", "middle", "right"):
            run("ip", "netns", "del", name)


class Sample(NamedTuple):
    seconds: float
    passed: int
    """Bytes that have left the queue since it was made."""
    waiting: int
    """Bytes in it."""


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        yield kind & 0x3FFF, data[at + 4 : at + length]
        at += max(4, length + 3 & ~3)


def queue(asked: socket.socket) -> tuple[int, int]:
    """Bytes that passed and that wait in RED's queue, of the namespace that the netlink socket is of."""
    asked.send(
        struct.pack("=IHHIIBxxxiIII", 36, RTM_GETQDISC, NLM_F_REQUEST | NLM_F_DUMP, 0, 0, 0, 0, 0, 0, 0)
    )
    found = None
    while True:
        data = asked.recv(1 << 16)
        while data:
            length, kind = struct.unpack_from("=IH", data)
            message, data = data[16:length], data[length + 3 & ~3 :]
            if kind == NLMSG_DONE:
                assert found, "there is no RED"
                return found
            told = dict(attributes(message[20:]))
            if told.get(TCA_KIND) == b"red\0":
                stats = dict(attributes(told[TCA_STATS2]))
                passed = struct.unpack_from("=Q", stats[TCA_STATS_BASIC])[0]
                found = passed, struct.unpack_from("=II", stats[TCA_STATS_QUEUE])[1]


class Watch(threading.Thread):
    """Looks at the queue every 10 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()
        self.seen: list[Sample] = []
        self.begin = 0.0
        """On the machine's monotonic clock, which all processes share."""

    def run(self) -> None:
        with namespaced("middle"):
            asked = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_ROUTE)
        with asked:
            self.begin = time.monotonic()
            while not self.over.wait(0.01):
                self.seen.append(Sample(time.monotonic() - self.begin, *queue(asked)))


def connected(left: End, right: End) -> tuple[int, int]:
    """A queue pair at each end, ready to send; their numbers."""
    sides = [(left, LEFT, left.make()), (right, RIGHT, right.make())]
    for (end, here, qpn), (_, there, to_qpn) in (sides, sides[::-1]):
        route = {"gid": gid(here), "to": gid(there), "to_qpn": to_qpn, "mtu": MTU[1024]}
        end.connect(qpn, **route, sq_psn=5, rq_psn=5, timeout=17)
    return sides[0][2], sides[1][2]


@contextlib.contextmanager
def watched() -> Iterator[Watch]:
    """Looks at the queue as long as the block lasts."""
    watch = Watch()
    watch.start()
    try:
        yield watch
    finally:
        watch.over.set()
        watch.join()


def transfer(library: Path, environ: dict[str, str], writes: int) -> tuple[list[Sample], dict[str, int]]:
    """WRITEs from left to right, their data checked. Returns what was seen and the sender's counters."""
    with End(SOFT, environ, library, "left") as left, End(SOFT, environ, library, "right") as right:
        qpns = connected(left, right)
        left.fill(0, LENGTH, 3)
        with watched() as watch:
            assert left.write_many(qpns[0], writes, LENGTH, right.addr, right.rkey) == writes
        assert right.digest(0, LENGTH) == left.digest(0, LENGTH)
        received = right.counters()
        sent: dict[str, int] = left.counters()
        assert received["marked"] >= received["cnps_sent"] >= sent["cnps_received"]
        for end, qpn in zip((left, right), qpns, strict=True):
            end.close(qpn)
    return watch.seen, sent


class Flood(NamedTuple):
    """What was seen while several queue pairs sent for a time."""

    seen: list[Sample]
    ends: list[tuple[float, int]]
    """Of each WRITE: seconds on the samples' clock, and which queue pair's it was."""
    received: dict[str, int]
    sent: dict[str, int]


def flood(library: Path, environ: dict[str, str], flows: int, seconds: float, length: int) -> Flood:
    """WRITEs from left to right on `flows` queue pairs, as fast as the sender lets them."""
    with End(SOFT, environ, library, "left") as left, End(SOFT, environ, library, "right") as right:
        pairs = [connected(left, right) for _ in range(flows)]
        with watched() as watch:
            numbers = [number for number, _ in pairs]
            ends = left.write_for(numbers, seconds, length, right.addr, right.rkey)
        found = Flood(
            watch.seen, [(at - watch.begin, which) for at, which in ends], right.counters(), left.counters()
        )
        for pair in pairs:
            for end, qpn in zip((left, right), pair, strict=True):
                end.close(qpn)
    return found
