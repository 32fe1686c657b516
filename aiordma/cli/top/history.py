"""What ``aiordma top --serve`` shows: the last look, ten minutes of sums, events, and who is slow."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from msgspec import Struct

from ...admin.requests import View
from .rates import VIEWS, Top, compare
from .verdict import Happened, Sentence, sentences

if TYPE_CHECKING:
    from ...admin.report import Report
    from .rates import BusyProcess

PAGE_SCHEMA = "aiordma-top-page/1"
#: Of `aiordma stat`, that are asked for.
PAGE_VIEWS: tuple[View, ...] = (*VIEWS, "events")
#: Seconds of history, and points at most.
KEPT_S, _MOST_POINTS = 600.0, 3000
#: Sentences are about so many seconds at least, as far as it has looked; what broke is told for longer.
_OF_LATE_S, _BROKE_S = 20.0, 60.0
#: Between two of the reports that are kept for that: they may be large.
_APART_S = 10.0
#: Events that are kept, and rows of a table.
_EVENTS, _ROWS = 300, 100


class PagePoint(Struct):
    """The sums of one look. Rates are per second."""

    #: seconds since the epoch
    at: float
    #: event loops, and those that are stuck or do not answer
    loops: int
    silent: int
    on_rdma: int
    on_tcp: int
    sent_per_s: float
    received_per_s: float
    calls_per_s: float
    completions_per_s: float


class PageEvent(Struct):
    """Something that happened."""

    #: the first time and the last one, in seconds since the epoch
    first_at: float
    last_at: float
    count: int
    pid: int
    program: str
    #: see ``Event`` of `aiordma stat`; besides ``began``, ``is gone``, ``was killed`` and ``is STATE`` of
    #: a process
    kind: str
    text: str


class Page(Struct):
    """What ``/top.json`` has."""

    schema: str
    interval_s: float
    top: Top
    sentences: list[Sentence]
    history: list[PagePoint]
    #: the last one first
    events: list[PageEvent]


_Known = dict[tuple[int, int], "BusyProcess"]


class History:
    """Takes reports, one after the other.

    :param interval_s: between them.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._points: deque[PagePoint] = deque(maxlen=_MOST_POINTS)
        self._own: deque[PageEvent] = deque(maxlen=_EVENTS)
        #: The last ones of processes, also of those that are gone.
        self._theirs: dict[tuple[object, ...], PageEvent] = {}
        self._report: Report | None = None
        self._top: Top | None = None
        #: some of the last looks, as sentences count from one of them
        self._of_late: deque[tuple[Report, Top]] = deque()

    def add(self, report: Report) -> Page:
        """:return: what the page has now."""
        top = compare(self._report, report)
        self._points.append(_point(top))
        while self._points[0].at < top.taken_at - KEPT_S:
            self._points.popleft()
        self._note_processes(top, report)
        self._note_events(report)
        events = sorted([*self._own, *self._theirs.values()], key=lambda each: -each.last_at)[:_EVENTS]
        said = self._sentences(report, top, events)
        self._report, self._top = report, top
        return Page(PAGE_SCHEMA, self._interval_s, _cut(top), said, list(self._points), events)

    def _sentences(self, report: Report, top: Top, events: list[PageEvent]) -> list[Sentence]:
        now, late = report.taken_at, self._of_late
        while len(late) > 1 and late[1][1].taken_at <= now - _OF_LATE_S:
            late.popleft()
        before, top_before = late[0] if late else (None, None)
        if not late or late[-1][1].taken_at <= now - _APART_S:
            late.append((report, top))
        return sentences(
            top_before,
            compare(before, report),
            [each for each in report.killed or () if each.last_at >= now - _BROKE_S],
            [
                Happened(each.program, each.pid, each.kind, each.text, each.last_at)
                for each in events
                if each.last_at >= now - _BROKE_S
            ],
        )

    def _note_processes(self, top: Top, report: Report) -> None:
        if self._top is None:
            return
        before, now = _by_process(self._top), _by_process(top)
        for key, row in now.items():
            earlier = before.get(key)
            if earlier is None:
                self._note(top, row, "began", f"{row.loop}, {row.on_rdma + row.on_tcp} connections")
            elif earlier.state != row.state:
                self._note(top, row, f"is {row.state}", row.text)
        killed = {(each.pid, each.program) for each in report.killed or ()}
        for key, row in before.items():
            if key not in now:
                kind = "was killed" if (row.pid, row.program) in killed else "is gone"
                self._note(top, row, kind, f"it had {row.on_rdma + row.on_tcp} connections")

    def _note(self, top: Top, row: BusyProcess, kind: str, text: str) -> None:
        self._own.append(PageEvent(top.taken_at, top.taken_at, 1, row.pid, row.program, kind, text))

    def _note_events(self, report: Report) -> None:
        for process in report.processes:
            for each in process.events or ():
                key = process.pid, process.program, each.kind, each.text, each.first_at
                self._theirs[key] = PageEvent(
                    each.first_at,
                    each.last_at,
                    each.count,
                    process.pid,
                    process.program,
                    each.kind,
                    each.text,
                )
        if len(self._theirs) > 4 * _EVENTS:
            kept = sorted(self._theirs.items(), key=lambda each: each[1].last_at)[-_EVENTS:]
            self._theirs = dict(kept)


def _by_process(top: Top) -> _Known:
    """Of a process with several event loops, each by its place."""
    found: _Known = {}
    for row in sorted(top.processes, key=lambda each: each.pid):
        at = 0
        while (row.pid, at) in found:
            at += 1
        found[row.pid, at] = row
    return found


def _point(top: Top) -> PagePoint:
    rows = top.processes
    return PagePoint(
        top.taken_at,
        len(rows),
        sum(row.state not in ("answered", "stopped") for row in rows),
        sum(row.on_rdma for row in rows),
        sum(row.on_tcp for row in rows),
        sum(row.sent_per_s for row in rows),
        sum(row.received_per_s for row in rows),
        sum(row.calls_per_s for row in rows),
        sum(row.completions_per_s for row in rows),
    )


def _cut(top: Top) -> Top:
    """The first rows of each table: those in trouble, the busiest, the slowest."""
    return Top(
        top.schema,
        top.taken_at,
        top.seconds,
        top.processes[:_ROWS],
        top.connections[:_ROWS],
        top.links[:_ROWS],
        top.methods[:_ROWS],
        top.fallbacks[:_ROWS],
    )
