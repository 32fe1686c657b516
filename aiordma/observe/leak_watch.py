"""The timer that looks for leaks on one event loop.

It compares what it sees with what it saw before, so that nothing has to be written down on the data path. A
look works for at most a millisecond in one turn of the loop.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from ..wake import origin
from ..wake.duplex import CLOSED, LOOP_ENDED
from ..wake.pipe_end import PipeEnd
from .leaks import Leak, ledger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..config import Config
    from ..wake.base import Handle, Waker
    from .leaks import Kind, Ledger

#: How often it looks: four times in the time after which something counts, within these limits.
_LOOKS, _LEAST_S, _MOST_S = 4, 0.02, 15.0
_TURN_S = 0.001


class _Sight(NamedTuple):
    """How an object looked, since when it looks so, and the key of the leak that was reported."""

    kind: Kind
    looks: object
    since: float
    key: object | None


class Watch:
    """Of one loop. It ends with it.

    :param ledger: gets what is found.
    """

    def __init__(self, waker: Waker, ledger: Ledger) -> None:
        self._waker, self._ledger = waker, ledger
        self._after = 0.0
        self._timer: Handle | None = None
        self._round: Iterator[None] | None = None
        self._sights: WeakKeyDictionary[PipeEnd, _Sight] = WeakKeyDictionary()
        #: keys of reported views
        self._views: set[object] = set()
        #: keys of reported leaks of streams, and those that were seen in this round
        self._reported: set[object] = set()
        self._numbers = itertools.count()
        self._ended = False
        waker.at_loop_end(self._end)

    def set_time(self, after_s: float) -> None:
        """:param after_s: what lasts for longer is a leak; 0: nothing is."""
        if after_s == self._after or self._ended:
            return
        self._after = after_s
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._round is None:
            self._soon()
        if not after_s:
            self._forget()

    def _soon(self) -> None:
        if self._after and not self._ended:
            period = min(max(self._after / _LOOKS, _LEAST_S), _MOST_S)
            self._timer = self._waker.call_at(self._waker.now() + period, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._round = self._look()
        self._go_on()

    def _go_on(self) -> None:
        if self._ended or self._round is None:
            return
        until = time.perf_counter() + _TURN_S
        for _ in self._round:
            if time.perf_counter() > until:
                self._waker.call_soon(self._go_on)
                return
        self._round = None
        self._soon()

    def _look(self) -> Iterator[None]:
        """One step for each object."""
        seen: set[object] = set()
        bound = self._waker.bound()
        while bound:
            # A look that pauses keeps alive only what it has not looked at.
            each = bound.pop()
            if isinstance(each, PipeEnd):
                key = self._look_at(each, self._waker.now())
                if key is not None:
                    seen.add(key)
                del each
                yield
        for key in self._reported - seen:
            self._ledger.over(key)
        self._reported = seen
        yield from self._look_at_views()

    # ---- streams and datagram connections

    def _look_at(self, end: PipeEnd, now: float) -> object | None:
        """The key of the leak that it is."""
        state = _state_of(end)
        before = self._sights.get(end)
        if state is None:
            if before is not None:
                del self._sights[end]
            return None
        kind, looks = state
        if before is None or (before.kind, before.looks) != (kind, looks):
            self._sights[end] = _Sight(kind, looks, now, None)
            return None
        if before.key is None and now - before.since >= self._after:
            before = before._replace(key=(id(self), next(self._numbers)))
            self._sights[end] = before
            self._report(before.key, kind, repr(end), now - before.since, _ring_bytes(end), end.origin)
        return before.key

    def _report(
        self, key: object, kind: Kind, what: str, lasted: float, held: int, where: origin.Origin
    ) -> None:
        self._ledger.found(
            key, Leak(kind, what, time.time(), round(lasted, 3), held, False, tuple(origin.shown(where)))
        )

    # ---- views of messages

    def _look_at_views(self) -> Iterator[None]:
        engine = self._waker.locals.get("engine")
        seen: set[object] = set()
        for each in () if engine is None else list(engine.devices.engines):
            for address, kept in list(each.pool.kept.items()):
                lasted = each.poller.second - kept.since
                # Both are whole seconds, and the second of a timer that may come late.
                if self._after and lasted >= self._after + 1:
                    view = (id(self), id(each), address, kept.since)
                    seen.add(view)
                    if view not in self._views:
                        gone = kept.holder.is_closed
                        what = f"a received message of {kept.holder.peer}"
                        what += ", which is gone" if gone else ""
                        self._report(view, "dead peer" if gone else "view", what, lasted, kept.length, ())
                yield
        for key in self._views - seen:
            self._ledger.over(key)
        self._views = seen

    # ---- the end

    def _forget(self) -> None:
        for key in self._reported | self._views:
            self._ledger.over(key)
        self._reported, self._views = set(), set()
        self._sights.clear()

    def _end(self) -> None:
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        self._forget()


def _state_of(end: PipeEnd) -> tuple[Kind, object] | None:
    """What it may be a leak of, and what changes when it is used. None: it is in use, or closed."""
    if end._receive_guard in (CLOSED, LOOP_ENDED):
        return None
    if end.loan_changes % 2:
        return "loan", end.loan_changes
    pipe: Any = end._pipe
    if pipe.path == "rdma" and (pipe.error is not None or _has_ended(pipe)):
        return "dead peer", None
    if end.in_use:
        return None
    return "idle", stats() if (stats := getattr(end, "statistics", None)) else None


def _has_ended(pipe: Any) -> bool:
    """The process of the peer has ended in order, for all that the stream shows."""
    # Datagrams on a ring are a layer over the pipe that has it.
    ring = getattr(pipe, "ring", None)
    ring = getattr(ring, "ring", ring)
    return ring is not None and bool(ring.link_failed)


def _ring_bytes(end: PipeEnd) -> int:
    pipe: Any = end._pipe
    if pipe.path != "rdma":
        return 0
    # Datagrams on a ring are a layer over the pipe that has it.
    ring = pipe if hasattr(pipe, "statistics") else getattr(pipe, "ring", None)
    return 0 if ring is None else int(ring.statistics().ring_bytes)


# ---- of event loops

_KEY = "leak watch"


def begin(waker: Waker, config: Config) -> None:
    """Look for leaks on this loop from now on."""
    if _KEY not in waker.locals:
        waker.locals[_KEY] = Watch(waker, ledger)
    configure(waker, config)


def configure(waker: Waker, config: Config) -> None:
    """The settings are these from now on. What is recorded holds for the whole process."""
    origin.record(config.leak_frames)
    watch: Watch | None = waker.locals.get(_KEY)
    if watch is not None:
        watch.set_time(config.leak_after_ms / 1000)
