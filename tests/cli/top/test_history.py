"""What the live page keeps: ten minutes of sums, events of processes and links, and who is slow."""

from __future__ import annotations

from typing import Any

import pytest

from aiordma.admin.messages import Event, Fallback, Method
from aiordma.cli.top.history import History
from aiordma.cli.top.rates import compare
from aiordma.cli.top.verdict import sentences

from .test_command import connection, link, loop, report, totals


def said(before: list[Any], now: list[Any]) -> list[tuple[str, str]]:
    """Sentences about the second of two looks, a second later."""
    first = report(100.0, *before)
    top = compare(None, first)
    return [(each.level, each.text) for each in sentences(top, compare(first, report(101.0, *now)))]


QUIET: dict[str, Any] = {"connections": [connection(1, 0, 0)], "totals": totals(0, 0)}


def method(side: str, p99_us: float, calls: int, errors: int = 0) -> Method:
    return Method(side, "", "shop.price", 0, calls, errors, 10 * calls, 1.0, p99_us, p99_us)


@pytest.mark.parametrize(
    ("before", "now", "level", "text"),
    [
        ({}, {}, "fine", "Nothing is slow: 1 connections are on RDMA, 0 on TCP."),
        (
            {},
            {"state": "stuck"},
            "bad",
            "app.py[7] stands still: its event loop has not come by for 9 s "
            "(py-spy dump --pid 7 shows where it is).",
        ),
        (
            {},
            {"state": "no answer"},
            "bad",
            "app.py[7] does not tell: its event loop has not come by for 9 s.",
        ),
        (
            {},
            {"totals": totals(0, 3)},
            "slow",
            "app.py[7] blocks its event loop: 3 times in the last 1 s, 5 ms at most.",
        ),
        (
            {},
            {"connections": [connection(1, 0, 0, waiting_bytes=1 << 20)]},
            "slow",
            "app.py[7] does not read: 1.0M wait for it (connection 1, 10.0.0.1:1 to 10.0.0.2:2).",
        ),
        (
            {},
            {"connections": [connection(1, 0, 0, times_blocked=5)]},
            "slow",
            "10.0.0.2:2 reads more slowly than app.py[7] sends: its ring was full 5 times in the last "
            "1 s (connection 1, 10.0.0.1:1 to 10.0.0.2:2).",
        ),
        (
            {"links": [link(0, 0, 0)]},
            {"links": [link(0, 0, 9)]},
            "slow",
            "The link of app.py[7] to 10.0.0.2:2 is narrow: 9 messages waited for its window "
            "(AIORDMA_WINDOW).",
        ),
        (
            {"rpc": [method("client", 9e3, 0), method("server", 50, 0)]},
            {"rpc": [method("client", 46e3, 90), method("server", 50, 90)]},
            "slow",
            "shop.price takes 46 ms or more (one call in 100) at the client app.py[7], and its handler "
            "0.1 ms: calls wait before it begins.",
        ),
        (
            {"rpc": [method("client", 9e3, 0), method("server", 7, 0)]},
            {"rpc": [method("client", 46e3, 90), method("server", 7, 90)]},
            "slow",
            "shop.price takes 46 ms or more (one call in 100) at the client app.py[7], and its handler "
            "under 0.1 ms: calls wait before it begins.",
        ),
        (
            {"rpc": [method("client", 50, 0)]},
            {"rpc": [method("client", 50, 9, errors=2)]},
            "slow",
            "2 calls of shop.price failed at the client app.py[7].",
        ),
        (
            {"fallbacks": []},
            {"fallbacks": [Fallback("left", "TCP 0x1", 1, None, "no memory", 4)]},
            "slow",
            "4 connections of app.py[7] left RDMA: no memory.",
        ),
    ],
)
def test_who_is_slow(before: dict[str, Any], now: dict[str, Any], level: str, text: str) -> None:
    assert said([loop(**{**QUIET, **before})], [loop(**{**QUIET, **now})]) == [(level, text)]


def test_the_worst_comes_first_and_there_is_a_limit() -> None:
    rows = [connection(number, 0, 0, waiting_bytes=1 << 20) for number in range(1, 100)]
    found = said([loop(**QUIET)], [loop(connections=rows), loop(pid=8, state="stuck")])
    assert len(found) == 20
    assert [level for level, _ in found] == ["bad"] + ["slow"] * 19


def test_a_loop_that_has_returned_is_not_slow() -> None:
    assert said([loop(**QUIET)], [loop(state="stopped")])[0][0] == "fine"


def test_names_have_no_control_characters() -> None:
    ((_, text),) = said([], [loop(program="\x1b[2J\u202eevil", state="stuck")])
    assert text.isprintable()


def test_ten_minutes_are_kept() -> None:
    history = History(1.0)
    for second in range(1, 2000):
        page = history.add(report(float(second), loop(**QUIET)))
    assert [page.history[0].at, page.history[-1].at, len(page.history)] == [1399.0, 1999.0, 601]
    assert (page.history[-1].loops, page.history[-1].silent, page.history[-1].on_rdma) == (1, 0, 1)


def test_processes_that_begin_end_and_stand_still_are_events() -> None:
    history = History(1.0)
    history.add(report(1.0, loop(**QUIET)))
    history.add(report(2.0, loop(**QUIET), loop(pid=8, program="other.py")))
    history.add(report(3.0, loop(state="stuck"), loop(pid=8, program="other.py")))
    page = history.add(report(4.0, loop(state="stuck")))
    assert [(each.last_at, each.pid, each.kind) for each in page.events] == [
        (4.0, 8, "is gone"),
        (3.0, 7, "is stuck"),
        (2.0, 8, "began"),
    ]
    assert [each.silent for each in page.history] == [0, 0, 1, 1]


def test_events_of_processes_stay_when_they_are_gone_and_count_once() -> None:
    history = History(1.0)
    for count in (1, 7):
        history.add(report(2.0, loop(events=[Event("left RDMA", "it failed", 1.0, 1.5, count)])))
    page = history.add(report(3.0))
    assert [(each.kind, each.count, each.last_at) for each in page.events] == [
        ("is gone", 1, 3.0),
        ("left RDMA", 7, 1.5),
    ]


def test_thousands_of_rows_are_cut() -> None:
    history = History(1.0)
    rows = [connection(number, number, 0) for number in range(6500)]
    events = [Event("link up", str(number), float(number), float(number), 1) for number in range(6500)]
    page = history.add(report(1.0, loop(connections=rows, events=events)))
    assert (len(page.top.connections), len(page.events), page.history[0].on_rdma) == (100, 300, 6500)
