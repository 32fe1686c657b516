"""What runs in an event loop takes the time from the loop's clock, and reads no other one.

Otherwise a test of a timeout has to wait for it, and a busy machine can fail the test.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .tree import ROOT

PACKAGE = ROOT / "aiordma"
#: How a clock is read in the languages of the package.
READS = re.compile(
    r"\bclock_gettime\(|\bgettimeofday\(|\bmonotonic(?:_ns)?\(\)|\bperf_counter(?:_ns)?\(\)|"
    r"\btime\.time(?:_ns)?\(\)|\bloop\.time\(\)|\btrio\.current_time\(\)|\banyio\.current_time\(\)|"
    r"\bimport (?:\w+, )*(?:monotonic|perf_counter)\b"
)
#: Rooms that are programs, or products of their own, and not what runs in the loop of a user's program.
OTHER_ROOMS = {"cli", "measure"}
#: Files that read a clock, each with its reason. It may only get shorter.
ALLOWED = {
    "wake/_clock.pyx": "it is the clock",
    "wake/clock.py": "it is the clock, uncompiled",
    "wake/_trio.py": "the contract of a loop's clock, on trio",
    "admin/page.py": "another process tells by the host's clock whether this loop is stuck",
    "admin/asking.py": "a tool asks, outside of the loop that it asks about",
    "admin/conversation.py": "a tool asks, outside of the loop that it asks about",
    "admin/answers.py": "ages of connections, for people",
    "admin/describe.py": "ages of connections, for people",
    "admin/report.py": "the date of a report",
    "admin/session.py": "how long an answer keeps the thread, not the loop's timers",
    "observe/_clock.pyx": "traces of several processes are compared by the host's clock",
    "observe/trace.py": "the same, and how often a line is logged",
    "observe/leaks.py": "dates of findings, and how often a line is logged",
    "observe/leak_watch.py": "how long a look keeps the thread",
    "observe/capture.py": "the dates of packets",
    "observe/connections.py": "ages of connections, for people",
    "observe/events.py": "dates of events, for people",
    "observe/listeners.py": "ages of listeners, for people",
    "valkey/connection.py": "ages of connections, for people",
    "negotiation/peer_cache.py": "shared by all loops of the process",
    "negotiation/question.py": "in a thread of its own",
    "links/parting.py": "a closed loop has no clock: the last looks at links that end",
    "wake/draining.py": "the same, for connections on TCP that end",
    "negotiation/client.py": "the loop's own clock, by anyio",
    "negotiation/plain_peers.py": "dates in a file that processes share",
    "launch/sudden_ends.py": "the end of a process, in which no loop runs any more",
    "launch/methods.py": "asyncio's own loop, whose time it is",
    "memory/region.py": "the date at which a descriptor expires, for a peer",
    "rpc/pool.py": "the loop's own clock, by anyio",
    "rpc/context.py": "names the loop's clock, in a text",
    "rpc/interceptor.py": "a program, in a text",
}


def readers(package: Path) -> dict[str, str]:
    """Files with a line that reads a clock, and that line."""
    found = {}
    for path in sorted(package.rglob("*")):
        name = path.relative_to(package).as_posix()
        if path.suffix not in {".py", ".pyx", ".pxd", ".h"} or name.partition("/")[0] in OTHER_ROOMS:
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            if READS.search(line):
                found[name] = line.strip()
                break
    return found


def test_nothing_else_reads_a_clock() -> None:
    assert {name: line for name, line in readers(PACKAGE).items() if name not in ALLOWED} == {}


def test_each_exception_is_needed() -> None:
    assert ALLOWED.keys() - readers(PACKAGE).keys() == set()


@pytest.mark.parametrize(
    "planted",
    [
        "    clock_gettime(CLOCK_MONOTONIC, &now)",
        "    began = time.monotonic()",
        "from time import monotonic",
        "    now = monotonic()",
        "    now = loop.time()",
        "    if time.time() > until:",
        "    started = perf_counter_ns()",
        "    deadline = anyio.current_time() + 1",
    ],
)
def test_a_planted_clock_is_found(tmp_path: Path, planted: str) -> None:
    (tmp_path / "pipes").mkdir()
    (tmp_path / "pipes" / "_ring.pyx").write_text(f"cdef f():\n{planted}\n")
    assert readers(tmp_path) == {"pipes/_ring.pyx": planted.strip()}
