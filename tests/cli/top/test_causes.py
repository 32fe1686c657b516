"""Sentences of the live page that name causes: which end waits, what was killed or broke, full memory."""

from __future__ import annotations

from typing import Any

import pytest

from aiordma.admin.messages import Engine, Event, Fallback, Totals
from aiordma.admin.report import Killed
from aiordma.cli.top.history import History

from .test_command import connection, loop, report

HERE, THERE = "10.0.0.1:1", "10.0.0.2:2"


def end(waiting: int, blocked_s: float, blocked_at: float = 0.0, *, peer: bool = False) -> Any:
    waits: Any = {"blocked_s": blocked_s, "blocked_at": blocked_at or 100.0 - blocked_s}
    row = connection(1, 0, 0, waiting_bytes=waiting, times_blocked=3, **waits)
    if peer:
        row.local, row.remote = row.remote, row.local
    return row


def said(*rows: Any) -> list[str]:
    """Of one connection's end in app.py, and perhaps of the other one in peer.py."""
    names = [(7, "app.py"), (8, "peer.py")]
    processes = [loop(pid, name, connections=[row]) for (pid, name), row in zip(names, rows, strict=False)]
    page = History(1.0).add(report(100.0, *processes))
    return [each.text for each in page.sentences]


MANY = 1 << 19


@pytest.mark.parametrize(
    ("app", "peer", "text"),
    [
        # The peer began it: what waits here is a consequence.
        (
            (MANY, 5.0),
            (MANY, 4.0),
            f"peer.py[8] does not read: 512K wait for it; app.py[7] has waited for 5.0s for that, and does "
            f"not read meanwhile, either (connection 1, {THERE} to {HERE}).",
        ),
        (
            (MANY, 4.0),
            (MANY, 5.0),
            f"app.py[7] does not read: 512K wait for it; peer.py[8] has waited for 5.0s for that, and does "
            f"not read meanwhile, either (connection 1, {HERE} to {THERE}).",
        ),
        # It was asked later, and counts more seconds.
        (
            (MANY, 5.0, 95.0),
            (MANY, 5.1, 95.01),
            f"peer.py[8] does not read: 512K wait for it; app.py[7] has waited for 5.0s for that, and does "
            f"not read meanwhile, either (connection 1, {THERE} to {HERE}).",
        ),
        (
            (0, 3.0),
            (MANY, 0.0),
            f"peer.py[8] does not read: 512K wait for it; app.py[7] has waited for 3.0s for that "
            f"(connection 1, {THERE} to {HERE}).",
        ),
        (
            (0, 3.0),
            (0, 0.0),
            "Nothing gets from peer.py[8] to app.py[7]: app.py[7] has waited for 3.0s for it to read, and it "
            f"has read all that came (connection 1, {THERE} to {HERE}). The link is tried, and given up "
            "without an answer.",
        ),
        (
            (0, 0.5),
            (MANY, 0.0),
            f"peer.py[8] does not read: 512K wait for it (connection 1, {THERE} to {HERE}).",
        ),
        # The other end is elsewhere.
        (
            (0, 3.0),
            None,
            f"app.py[7] has waited for 3.0s for {THERE} to read (connection 1, {HERE} to {THERE}).",
        ),
        (
            (MANY, 3.0),
            None,
            f"app.py[7] has waited for 3.0s for {THERE} to read, and 512K for it: of two ends that wait, the "
            f"later one began it (connection 1, {HERE} to {THERE}).",
        ),
        ((100, 0.0), None, "Nothing is slow: 1 connections are on RDMA, 0 on TCP."),
    ],
)
def test_which_end_is_the_cause(app: Any, peer: Any, text: str) -> None:
    assert said(end(*app), *(() if peer is None else [end(*peer, peer=True)])) == [text]


def texts(history: History, at: float, *processes: Any, killed: list[Killed] | None = None) -> list[str]:
    now = report(at, *processes)
    now.killed = killed
    return [each.text for each in history.add(now).sentences]


def test_what_was_killed_or_broke_is_told_for_a_minute() -> None:
    history = History(1.0)
    lost = Event("link lost", "10.0.0.2:2: no answer", 1000.0, 1000.0, 1)
    row = loop(connections=[connection(1, 0, 0)], events=[lost, Event("link ended", "x", 1000.0, 1000.0, 1)])
    gone = [Killed(9, 0, "root", "peer.py", 1001.0, 3)]
    history.add(report(999.0, row, loop(9, "peer.py")))
    first, second = texts(history, 1002.0, row, killed=gone)
    assert first.startswith("peer.py[9] was killed, or crashed, at ")
    assert first.endswith(": it had 3 connections.")
    assert second.startswith("app.py[7] lost its link to 10.0.0.2:2: no answer (at ")
    page = history.add(report(1003.0, row))
    assert {each.kind for each in page.events} == {"link lost", "link ended", "was killed"}
    assert texts(history, 1059.0, row, killed=gone) == [first, second]
    assert texts(history, 1062.0, row, killed=gone) == [
        "Nothing is slow: 1 connections are on RDMA, 0 on TCP."
    ]


def test_streams_that_left_rdma_are_told_until_they_are_back() -> None:
    history = History(1.0)
    left = [Fallback("left", "TCP 0x05000000", 5, None, "it failed", 1)]
    on_tcp = connection(1, 0, 0, "tcp")
    on_tcp.reason = "it failed"
    history.add(report(0.0, loop(connections=[connection(1, 0, 0)], fallbacks=[])))
    away = loop(connections=[on_tcp], fallbacks=left)
    assert texts(history, 1.0, away) == ["1 connections of app.py[7] left RDMA: it failed."]
    for at in range(2, 60):
        last = texts(history, float(at), away)
        assert len(last) == 1
    assert last == ["1 connections of app.py[7] are on TCP since they left RDMA: it failed."]
    back = loop(connections=[connection(1, 0, 0)], fallbacks=left)
    assert texts(history, 60.0, back) == ["Nothing is slow: 1 connections are on RDMA, 0 on TCP."]


def totals(**more: Any) -> Totals:
    memory = {name: more.pop(name, 0) for name in ("used_bytes", "downgrades", "failures")}
    engine = Engine("soft0", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, limit_bytes=1 << 20, **memory)
    return Totals(1, 1, {}, 0, 0, [engine], **more)


LIMIT = "(AIORDMA_MEMORY_LIMIT_BYTES; aiordma stat --memory shows who holds it)."


@pytest.mark.parametrize(
    ("now", "text"),
    [
        (
            {"failures": 3, "downgrades": 9, "used_bytes": 1 << 20},
            "app.py[7] has no registered memory left: it refused 3 blocks in the last 10 s; 1.0M of 1.0M are "
            f"in use {LIMIT}",
        ),
        (
            {"downgrades": 9, "used_bytes": 1 << 19},
            "app.py[7] runs short of registered memory: 9 blocks were smaller than wanted in the last 10 s; "
            f"512K of 1.0M are in use {LIMIT}",
        ),
        (
            {"used_bytes": 1 << 20},
            f"app.py[7] has hardly any registered memory left: 1.0M of 1.0M are in use {LIMIT}",
        ),
        ({"used_bytes": 1 << 19}, "Nothing is slow: 1 connections are on RDMA, 0 on TCP."),
        (
            {"late_timers": 7, "latest_timer_ms": 240.0},
            "app.py[7] blocks its event loop: a timer that comes once a second was late 7 times in the last "
            "minute, by 240 ms at most (aiordma adm --pid 7 trace start makes its log name what blocks it).",
        ),
        (
            {"queued_ms": 240.0},
            "This host is busy: 1 event loops have waited for a processor, 240 ms at most in the last minute "
            "(app.py[7]).",
        ),
        (
            {"late_timers": 1, "latest_timer_ms": 240.0},
            "Nothing is slow: 1 connections are on RDMA, 0 on TCP.",
        ),
    ],
)
def test_what_a_process_tells_of_itself(now: dict[str, Any], text: str) -> None:
    history, row = History(1.0), connection(1, 0, 0)
    history.add(report(0.0, loop(connections=[row], totals=totals())))
    assert texts(history, 10.0, loop(connections=[row], totals=totals(**now))) == [text]
