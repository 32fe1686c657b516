"""What the process answers: rows of what its event loop holds, made a few at a time."""

from __future__ import annotations

import itertools
import os
import platform
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from ..addresses import show
from ..observe import capture, events, leaks, listeners, trace, warned
from ..observe import connections as registered
from ..observe.calls import past
from ..verbs.qp import QpPath
from . import actions
from .counting import open_connections
from .describe import KINDS, Moment, describe_connection, describe_valkey, mode_of
from .holders import holders
from .late_timers import late_timers
from .messages import (
    Call,
    Calls,
    Connections,
    Device,
    Devices,
    Done,
    Engine,
    Event,
    Events,
    Fallback,
    Fallbacks,
    Identity,
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
    Tasks,
    Totals,
    Warning,
    Warnings,
)
from .page import program
from .pause import Pause
from .requests import FromTool, Inspect, Show, View
from .tasks import tasks

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator

    from msgspec import Struct

    from ..wake.base import Waker

_Reason = tuple[int, int | None, str]
_Times = tuple[float, float]

#: Connections in one message.
_ROWS = 16
#: A timer that is so late, in seconds, was kept from coming: it is no matter of its resolution.
_LATE_S = 0.02
#: Of an engine's completion queue, and of its memory.
_OF_POLLERS = (
    "completions",
    "polls",
    "empty_polls",
    "slow_polls",
    "slowest_poll_ns",
    "events",
    "arms",
    "busy_polls",
    "busy_poll_hits",
    "budget_exhausted",
)
_OF_MEMORY = ("used_bytes", "limit_bytes", "downgrades", "failures")
#: Traced calls that are told.
_CALLS = 256


def answer(waker: Waker, request: FromTool, asker: tuple[int, int]) -> Iterator[Struct | Pause]:
    """The parts of the answer, the last one :class:`Done` or :class:`Refused`.

    :param asker: process id and user id of the tool.
    """
    yield _identity(waker)
    if isinstance(request, Inspect):
        yield from _inspection(waker)
        yield Done()
    elif isinstance(request, Show):
        for view in dict.fromkeys(request.views):
            yield from _VIEWS[view](waker)
        yield Done()
    else:
        yield from actions.ACTIONS[type(request)](waker, request, asker)


def _identity(waker: Waker) -> Identity:
    return Identity(
        pid=os.getpid(),
        uid=os.getuid(),
        program=program(),
        loop=waker.name,
        version=sys.modules["aiordma"].__version__,
        python=platform.python_version(),
        host=socket.gethostname(),
    )


def _engines(waker: Waker) -> list[Any]:
    front = waker.locals.get("engine")
    return [] if front is None else list(front.devices.engines)


# ---- why does it hang, why is it slow


def _inspection(waker: Waker) -> Iterator[Struct]:
    if waker.locals.get("engine") is not None:
        yield actions.settings_of(waker)
    rows = tasks()
    while some := list(itertools.islice(rows, _ROWS)):
        yield Tasks(some)
    calls = iter(trace.recent(_CALLS))
    while found := list(itertools.islice(calls, _ROWS)):
        yield Calls([_call(record) for record in found])
    yield from _warnings()
    running = capture.running()
    if running is not None:
        yield from actions.packets_of(running)


def _warnings() -> Iterator[Struct]:
    rows = iter(warned.recent())
    while some := list(itertools.islice(rows, _ROWS)):
        yield Warnings([Warning(*row) for row in some])


def _call(record: trace.Record) -> Call:
    stages: dict[str, int | None] = {"waited": record.waited, "handler": record.handler}
    if record.stages is not None:
        stages = record.stages._asdict()
    return Call(
        side=record.side,
        method=record.method,
        peer=record.peer,
        code=record.code,
        began=record.began,
        total_us=record.total / 1e3,
        stages_us={name: value / 1e3 for name, value in stages.items() if value is not None},
    )


# ---- views


def _connections(waker: Waker) -> Iterator[Struct]:
    rows = []
    now, loop_now = time.monotonic(), _moment(waker)
    for entry in registered.of_loop(waker):
        row = describe_connection(entry, now, loop_now)
        if row is not None:
            rows.append(row)
        if len(rows) == _ROWS:
            yield Connections(rows)
            rows = []
            now, loop_now = time.monotonic(), _moment(waker)
    yield Connections(rows)
    module = sys.modules.get("aiordma.valkey.connection")
    if module is not None:
        found = (describe_valkey(each, time.monotonic()) for each in list(module.connections(waker)))
        known = (row for row in found if row is not None)
        while some := list(itertools.islice(known, _ROWS)):
            yield Connections(some)


def _moment(waker: Waker) -> Moment:
    seconds = [engine.poller.second for engine in _engines(waker)]
    return Moment(waker.now(), min(seconds, default=0))


def _listeners(waker: Waker) -> Iterator[Struct]:
    now = time.monotonic()
    yield Listeners(
        [
            Listener(
                kind=KINDS.get(each.kind, str(each.kind)),
                addresses=[show(address) for address in each.addresses],
                age_s=round(now - since, 3),
                accepted=each.accepted,
                negotiating=each.negotiating,
                waiting=each.waiting,
                rdma=each.rdma,
                tcp=each.tcp,
                failed=each.failed,
            )
            for each, since in listeners.of_loop(waker)
        ]
    )


def _events(waker: Waker) -> Iterator[Struct]:
    rows = (Event(each.kind, each.text, each.first_at, each.last_at, each.count) for each in events.recent())
    while some := list(itertools.islice(rows, _ROWS)):
        yield Events(some)


def _links(waker: Waker) -> Iterator[Struct]:
    retrying = QpPath()  # all links have these
    for engine in _engines(waker):
        backend = engine.backend
        rows = (
            Link(
                device=backend.name,
                gid=backend.gid.raw.hex(":", 2),
                window=engine.config.window,
                mtu=backend.mtu.size,
                registered_bytes=group.rings.registered_bytes,
                used_bytes=group.rings.used_bytes,
                ack_timeout_ms=round(retrying.ack_timeout_s * 1000, 1),
                retries=retrying.retry_count,
                rnr_retries=retrying.rnr_retry,
                age_s=round(waker.now() - group.since, 3),
                **group.statistics(),
            )
            for group in list(engine.all_groups)
            if group in engine.all_groups  # still: there was a turn of the loop since
        )
        while some := list(itertools.islice(rows, _ROWS)):
            yield Links(some)


def _devices(waker: Waker) -> Iterator[Struct]:
    front = waker.locals.get("engine")
    if front is None:
        return
    opened = {engine.backend.name: engine.backend for engine in front.devices.engines}
    rows = []
    for row in front.devices.statistics()["devices"]:
        backend = opened.get(row["device"])
        details: dict[str, Any] = {}
        if backend is not None:
            details = {
                "kind": "software" if backend.is_soft else "kernel",
                "port": backend.port,
                "gid": backend.gid.raw.hex(":", 2),
                "mtu": backend.mtu.size,
            }
        rows.append(Device(**row, **details))
    yield Devices(rows)


def _memory(waker: Waker) -> Iterator[Struct]:
    engines = _engines(waker)
    rows = [
        Memory(
            device=engine.backend.name,
            parked_qps=len(engine.cache.parked),
            **engine.pool.statistics()._asdict(),
        )
        for engine in engines
    ]
    yield MemoryUse(rows, [])
    held = holders(waker, engines)
    while some := list(itertools.islice(held, _ROWS)):
        yield MemoryUse([], some)


def _rpc(waker: Waker) -> Iterator[Struct]:
    rows = []
    methods = {key: [0, *counts] for key, counts in past(waker).items()}
    multiplexer = sys.modules.get("aiordma.rpc.multiplexer")
    kind = () if multiplexer is None else multiplexer.Multiplexer
    ends = [each for each in waker.bound() if isinstance(each, kind)]
    for each in ends:
        if each.ended is not None:
            continue
        row = Method(each.side, each.peer, "", len(each.machine.calls))
        for name, calls, errors, in_flight in each.machine.counts():
            row.calls, row.errors = row.calls + calls, row.errors + errors
            sums = methods.setdefault((each.side, name), [0, 0, 0])
            sums[:] = sums[0] + in_flight, sums[1] + calls, sums[2] + errors
        rows.append(row)
        if len(rows) == _ROWS:
            yield Rpc(rows)
            rows = []
    traced = trace.summary()
    for side, method in sorted({*methods, *traced}):
        row = Method(side, "", method or "(without a number)", *methods.get((side, method), (0, 0, 0)))
        summary = traced.get((side, method))
        if summary is not None:
            total = summary.total
            row.traced = total.calls
            row.p50_us, row.p99_us, row.max_us = total.p50 / 1e3, total.p99 / 1e3, total.highest / 1e3
        rows.append(row)
        if len(rows) == _ROWS:
            yield Rpc(rows)
            rows = []
    yield Rpc(rows)


def _fallbacks(waker: Waker) -> Iterator[Struct]:
    counts = registered.counts

    def rows(when: str, counter: Counter[_Reason], times: dict[_Reason, _Times]) -> Iterator[Fallback]:
        for key, number in counter.most_common():
            local, peer, text = key
            yield Fallback(when, mode_of(local, peer), local, peer, text, number, *times.get(key, (0.0, 0.0)))

    began = rows("began", counts.fallbacks, counts.fallback_times)
    yield Fallbacks([*began, *rows("left", counts.left, counts.left_times)])


def _leaks(waker: Waker) -> Iterator[Struct]:
    found = [(leak, True) for leak in leaks.open_leaks()] + [(leak, False) for leak in leaks.recent()]
    rows = (
        Leak(
            kind=leak.kind,
            what=leak.what,
            open=is_open,
            found_at=leak.found_at,
            lasted_s=leak.lasted_s,
            held_bytes=leak.held_bytes,
            reclaimed=leak.reclaimed,
            where=list(leak.where),
        )
        for leak, is_open in found
    )
    while some := list(itertools.islice(rows, _ROWS)):
        yield Leaks(some)


def _totals(waker: Waker) -> Iterator[Struct]:
    counts, engines = registered.counts, _engines(waker)
    late = late_timers(waker)
    kinds = counts.connections.items()
    yield Totals(
        open=open_connections(waker),
        links=sum(len(engine.all_groups) for engine in engines),
        connections={f"{KINDS.get(kind, kind)}/{side}/{path}": n for (kind, side, path), n in kinds},
        fell_back=counts.fallbacks.total(),
        left_rdma=counts.left.total(),
        engines=[_engine(each) for each in engines],
        leaks={str(kind): count for kind, count in leaks.counts().items()},
        slow_requests=trace.slow_counts()["request"],
        slow_handlers=trace.slow_counts()["handler"],
        late_timers=sum(blocked >= _LATE_S for blocked, _ in late),
        latest_timer_ms=round(1000 * max((blocked for blocked, _ in late), default=0.0), 3),
        queued_ms=round(1000 * max((queued for _, queued in late), default=0.0), 3),
    )


def _engine(engine: Any) -> Engine:
    memory = engine.pool.statistics()
    return Engine(
        engine.backend.name,
        *(getattr(engine.poller, name) for name in _OF_POLLERS),
        **{name: getattr(memory, name) for name in _OF_MEMORY},
    )


_VIEWS: dict[View, Callable[[Waker], Iterator[Struct]]] = {
    "connections": _connections,
    "listeners": _listeners,
    "links": _links,
    "devices": _devices,
    "memory": _memory,
    "rpc": _rpc,
    "fallbacks": _fallbacks,
    "events": _events,
    "leaks": _leaks,
    "totals": _totals,
}
