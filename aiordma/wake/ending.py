"""The end of an event loop, and of objects that were not closed: what was theirs is released in each case.

asyncio has no hook for the end of a loop. There are three ends, and each waker watches for all of them:

* in order: ``asyncio.run()``, ``asyncio.Runner``, ``uvloop.run()`` and every test runner close the async
  generators that were begun, so one that was begun on purpose learns of it while the loop still runs;
* ``loop.close()`` alone, after ``run_until_complete()`` or a crash;
* neither: the loop is dropped, and the garbage collector finds it, with everything that belongs to it.

A trio run always ends in order: it cancels its system tasks.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

from .base import run_at_end, run_guarded
from .origin import Origin

if TYPE_CHECKING:
    from .base import Callback, ClosedCallback, EndCallback, LoopBound, Waker

_log = logging.getLogger("aiordma.wake")

UnclosedHook = Callable[[str, Origin, str], None]
"""Called with what it was, where it was created, and its kind. In any thread; raises nothing."""

#: What counts objects that were not closed, once something does.
unclosed_hook: UnclosedHook | None = None


def note_unclosed(what: str, origin: Origin, kind: str = "dropped") -> None:
    """An object was dropped that should have been closed or given back. For finalizers."""
    if unclosed_hook is not None:
        unclosed_hook(what, origin, kind)


class Ending:
    """What is to be done when one loop ends."""

    __slots__ = ("_bound", "_callbacks")

    def __init__(self) -> None:
        self._callbacks: list[tuple[EndCallback, ClosedCallback | None]] = []
        # Not a WeakSet: each connection enters and leaves, and here that is done by two functions in C.
        self._bound: set[ref[LoopBound]] = set()

    def add(self, callback: EndCallback, when_closed: ClosedCallback | None) -> None:
        self._callbacks.append((callback, when_closed))

    def bind(self, what: LoopBound) -> None:
        bound = self._bound
        bound.add(ref(what, bound.discard))

    def bound(self) -> list[LoopBound]:
        return [each for reference in self._bound.copy() if (each := reference()) is not None]

    async def run(self) -> None:
        """The loop ends in order."""
        self._end_bound()
        while self._callbacks:
            await run_at_end(self._callbacks.pop()[0])

    def run_now(self, patient: bool) -> None:
        """The loop is about to be closed, or was dropped: nothing can be awaited.

        :param patient: whether the thread may be blocked for a moment.
        """
        self._end_bound()
        while self._callbacks:
            callback, when_closed = self._callbacks.pop()
            if when_closed is not None:
                run_guarded(lambda call=when_closed: call(patient))  # type: ignore[misc]
            else:
                run_guarded(callback)  # type: ignore[arg-type]

    def _end_bound(self) -> None:
        bound = self.bound()
        self._bound.clear()
        for each in bound:
            run_guarded(each.loop_ended)

    def follow_close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have ``loop.close()`` call :meth:`run_now` first."""
        close = loop.close

        def end_and_close() -> None:
            try:
                if not loop.is_running() and not loop.is_closed():
                    self.run_now(patient=_no_loop_runs())
            finally:
                close()

        try:
            loop.close = end_and_close  # type: ignore[method-assign]
        except AttributeError:
            _log.debug("%r does not allow its close() to be followed", loop)


def follow_runs(loop: asyncio.AbstractEventLoop, told: Callable[[bool], None]) -> None:
    """See :meth:`.base.Waker.follow_runs`. asyncio has no hook for it either: its runs call these two methods
    of the loop, the first one from its last callback, when this is called too late to follow the second."""
    stop, run_forever = loop.stop, loop.run_forever

    def stop_and_tell() -> None:
        stop()
        told(False)

    def run_and_tell() -> None:
        if loop.is_running() or loop.is_closed():  # it refuses
            run_forever()
            return
        told(True)
        try:
            run_forever()
        finally:
            told(False)

    try:
        loop.stop = stop_and_tell  # type: ignore[method-assign]
        loop.run_forever = run_and_tell  # type: ignore[method-assign]
    except AttributeError:
        _log.debug("%r does not allow its runs to be followed", loop)


def _no_loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False


def refuse_other_loop(loop: object) -> None:
    """Objects of one loop are used in another one.

    :raises RuntimeError: always.
    """
    raise RuntimeError(
        f"this object belongs to another event loop, {loop!r}: streams, connections, listeners and clients "
        "are used in the loop they were made in, by tasks of that loop only. From another thread, use "
        "asyncio.run_coroutine_threadsafe() or anyio.from_thread; or connect in the loop that needs it"
    )


def release_unclosed(owner: Any, waker: Waker, release: Callback | None, warn: Callable[..., None]) -> None:
    """For finalizers: ``owner`` was not closed. Say so, and call ``release`` where it may be called.

    The garbage collector may be in any thread, and in the middle of anything that allocates; so ``release``,
    which must not refer to ``owner``, is called by the loop, or at once when that has ended.

    :param release: None: everything has been released with the loop.
    """
    if waker.pid != os.getpid():
        return  # in a forked child: it belongs to the parent
    try:
        note_unclosed(repr(owner), getattr(owner, "origin", ()))
        warn(f"unclosed {owner!r}", ResourceWarning, source=owner)
    finally:
        if release is not None and not waker.call_from_anywhere(release):
            try:
                release()
            except RuntimeError:  # it has woken somebody who waited in the loop, which is closed
                _log.debug("%r was released after its loop", owner, exc_info=True)
