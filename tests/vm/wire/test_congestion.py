"""DCQCN between two software devices, with a slow router between them that marks packets (RED with ECN)."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .ends import MTU, SOFT, End, gid, run

if TYPE_CHECKING:
    from collections.abc import Iterator

# The router's slow side: 80 Mb/s. RED marks from 30 kB of queue on, all of it from 90 kB on.
RATE = "80mbit"
RED = "limit 1000000 min 30000 max 90000 avpkt 1100 burst 28 bandwidth 80mbit probability 0.1 ecn".split()
LENGTH = 64 << 10
WRITES = 150  # what is under way from the first moment on is more than RED lets pass unmarked


@pytest.fixture(scope="module")
def router() -> Iterator[None]:
    """Namespaces left - middle - right."""
    for name in ("left", "middle", "right"):
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "set", "lo", "up")
    for number, name in enumerate(("left", "right")):
        cable = ["ip", "link", "add", "cable", "netns", name, "type", "veth"]
        run(*cable, "peer", "name", name, "netns", "middle")
        run("ip", "-n", name, "addr", "add", f"10.79.{number}.2/24", "dev", "cable")
        run("ip", "-n", name, "link", "set", "cable", "up")
        run("ip", "-n", name, "route", "add", "default", "via", f"10.79.{number}.1")
        run("ip", "-n", "middle", "addr", "add", f"10.79.{number}.1/24", "dev", name)
        run("ip", "-n", "middle", "link", "set", name, "up")
    run("ip", "netns", "exec", "middle", "sysctl", "-qw", "net.ipv4.ip_forward=1")
    tc = ["tc", "-n", "middle", "qdisc", "add", "dev", "right"]
    run(*tc, "root", "handle", "1:", "tbf", "rate", RATE, "burst", "5k", "limit", "1000000")
    run(*tc, "parent", "1:", "handle", "2:", "red", *RED)
    yield
    for name in ("left", "middle", "right"):
        run("ip", "netns", "del", name)


def queue() -> dict[str, Any]:
    qdiscs = json.loads(run("tc", "-n", "middle", "-s", "-j", "qdisc", "show", "dev", "right"))
    return next(qdisc for qdisc in qdiscs if qdisc["kind"] == "red")


class Watch(threading.Thread):
    """Looks at the queue as often as it can."""

    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()
        self.seen: list[tuple[float, int, int]] = []  # seconds, bytes sent, bytes waiting

    def run(self) -> None:
        begin = time.monotonic()
        while not self.over.wait(0.02):
            now = queue()
            self.seen.append((time.monotonic() - begin, now["bytes"], now["backlog"]))


def transfer(library: Path, environ: dict[str, str]) -> tuple[list[tuple[float, int, int]], dict[str, int]]:
    """WRITEs from left to right, their data checked. Returns what was seen and the sender's counters."""
    with End(SOFT, environ, library, "left") as left, End(SOFT, environ, library, "right") as right:
        sides = [(left, "10.79.0.2", left.make()), (right, "10.79.1.2", right.make())]
        for (end, here, qpn), (_, there, to_qpn) in (sides, sides[::-1]):
            end.connect(
                qpn,
                gid=gid(here),
                to=gid(there),
                to_qpn=to_qpn,
                mtu=MTU[1024],
                sq_psn=5,
                rq_psn=5,
                timeout=17,
            )
        left.fill(0, LENGTH, 3)
        watch = Watch()
        watch.start()
        try:
            assert left.write_many(sides[0][2], WRITES, LENGTH, right.addr, right.rkey) == WRITES
        finally:
            watch.over.set()
            watch.join()
        assert right.digest(0, LENGTH) == left.digest(0, LENGTH)
        received = right.counters()
        sent: dict[str, int] = left.counters()
        assert received["marked"] >= received["cnps_sent"] >= sent["cnps_received"]
        for end, _, qpn in sides:
            end.close(qpn)
    return watch.seen, sent


@pytest.mark.parametrize("kind", ["sigcomm15", "connectx", "off"])
def test_marks_reach_the_sender(library: Path, router: None, kind: str) -> None:
    """All arrives, and the sender hears of the marks, whether it does something about them or not."""
    before = queue()
    seen, sent = transfer(library, {"AIORDMA_SOFT_CONGESTION": kind})
    after = queue()
    assert after["marked"] > before["marked"]
    assert sent["cnps_received"] > 0
    to = os.environ.get("AIORDMA_VM_RECORD")
    if to:
        record = {"seen": seen, "counters": sent, "marked": after["marked"] - before["marked"]}
        Path(to, f"congestion-{kind}.json").write_text(json.dumps(record))
