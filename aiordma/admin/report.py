"""What ``aiordma stat --json`` prints, as types: its schema (:func:`schema`) is made of them."""

from __future__ import annotations

import contextlib
import pwd
import time
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from .asking import ask, killed, loops
from .messages import (
    Connection,
    Connections,
    Device,
    Devices,
    Event,
    Events,
    Fallback,
    Fallbacks,
    Holder,
    Leak,
    Leaks,
    Link,
    Links,
    Listener,
    Listeners,
    Memory,
    MemoryUse,
    Method,
    Rpc,
    Totals,
    VerbsProgram,
)
from .requests import NEW_VIEWS, Show, View
from .verbs_programs import verbs_programs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .asked import Loop
    from .page import Page

#: Name and version. Fields may be added; another number means that some have gone or mean something else.
SCHEMA = "aiordma-stat/1"


class Process(Struct):
    """One event loop of one process. Views that were not asked for, or not answered, are null."""

    pid: int
    uid: int
    user: str
    program: str
    #: asyncio, uvloop or trio
    loop: str
    #: "answered"; "stuck": its timer is late; "stopped": it returned, and was not closed; "no answer";
    #: "refused"; "not allowed"
    state: str
    #: why there is no answer
    text: str
    #: seconds since its timer came by, which it does every second
    silent_s: float
    #: of aiordma there; empty without an answer
    version: str
    #: what the page says, also of a loop that is stuck
    open_connections: int
    #: with a baseline (``--reset``): when it was taken, in seconds since the epoch; totals count from then
    since: float | None = None
    connections: list[Connection] | None = None
    listeners: list[Listener] | None = None
    links: list[Link] | None = None
    devices: list[Device] | None = None
    memory: list[Memory] | None = None
    #: with ``memory``
    holders: list[Holder] | None = None
    rpc: list[Method] | None = None
    fallbacks: list[Fallback] | None = None
    events: list[Event] | None = None
    leaks: list[Leak] | None = None
    totals: Totals | None = None


class Killed(Struct):
    """A process that ended without closing its event loops, as one does that is killed or crashes."""

    pid: int
    uid: int
    user: str
    program: str
    #: when its loop came by last, which it did every second, in seconds since the epoch
    last_at: float
    open_connections: int


class Report(Struct):
    """Everything that was asked for."""

    schema: str
    #: seconds since the epoch
    taken_at: float
    processes: list[Process]
    #: with ``devices``: programs that have one open, as far as this user may see them
    programs: list[VerbsProgram] | None = None
    #: in the last ten minutes, as far as this user may see them
    killed: list[Killed] | None = None


_ROWS: dict[str, type[Any]] = {
    "connections": Connections,
    "listeners": Listeners,
    "links": Links,
    "devices": Devices,
    "memory": MemoryUse,
    "rpc": Rpc,
    "fallbacks": Fallbacks,
    "events": Events,
    "leaks": Leaks,
}


def user_name(uid: int) -> str:
    """For people."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)


def collect(
    views: Iterable[View], wanted: Callable[[Page], bool] | None = None, pid: int | None = None
) -> Report:
    """Ask all processes that this user may ask, except this one.

    :param wanted, pid: only these.
    """

    def others(page: Page) -> bool:
        return not page.is_own and (wanted is None or wanted(page))

    views = tuple(views)
    known = tuple(view for view in views if view not in NEW_VIEWS)
    found = ask(Show(views), loops(others, pid))
    if older := [each for each in found if each.state == "refused" and set(views) & set(NEW_VIEWS)]:
        ask(Show(known), older)  # they do not know some of them
    rows = [_process(each, known if each in older else views) for each in found]
    report = Report(SCHEMA, time.time(), rows)
    report.killed = [_killed(report.taken_at, *each) for each in killed(wanted, pid)]
    if "devices" in views:
        report.programs = verbs_programs({each.page.pid for each in loops()}, pid)
    return report


def _killed(now: float, uid: int, page: Page) -> Killed:
    last_at = round(now - page.silent_s, 3)
    return Killed(page.pid, uid, user_name(uid), page.program, last_at, page.connections)


def _process(loop: Loop, views: tuple[View, ...]) -> Process:
    page, identity = loop.page, loop.identity
    process = Process(
        pid=page.pid,
        uid=loop.uid,
        user=user_name(loop.uid),
        program=page.program if identity is None else identity.program,
        loop=page.loop,
        state=loop.state,
        text=loop.text,
        silent_s=round(page.silent_s, 3),
        version="" if identity is None else identity.version,
        open_connections=page.connections,
    )
    if loop.state == "answered":
        for view in views:
            if view == "totals":
                process.totals = next((part for part in loop.parts if isinstance(part, Totals)), None)
                if process.totals is not None:
                    process.open_connections = process.totals.open
            else:
                parts: list[Any] = [part for part in loop.parts if isinstance(part, _ROWS[view])]
                setattr(process, view, [row for part in parts for row in part.rows])
                if view == "memory":
                    process.holders = [row for part in parts for row in part.holders]
        if process.connections is not None:
            process.open_connections = len(process.connections)
    return process


def schema() -> dict[str, Any]:
    """The JSON schema of :class:`Report`."""
    found = msgspec.json.schema(Report)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **found}
