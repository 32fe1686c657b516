"""Coroutines that begin at once, on asyncio: many a handler never waits, and then it needs no task.

A new task costs an event loop its creation, a place in the queue, and a turn.
``asyncio.Task(eager_start=True)`` saves the last two, from Python 3.12 on. Here the first step needs none of
them: it runs at once *as* a task that was made before and is parked (``asyncio._enter_task``, documented for
extensions of asyncio). So ``current_task()``, timeouts, task groups and cancel scopes work from the first
line of the coroutine. If that step ends it, the parked task stays parked. If it waits, the parked task wakes
up, waits for the very same future instead, and drives the coroutine to its end: from then on it is the
coroutine's own task, and never serves another one.

The coroutine runs in a context of its own (``contextvars``) in both cases.
"""

from __future__ import annotations

import asyncio
import types
from typing import TYPE_CHECKING, Any

from ._private import current_task, task_switch
from .escaping import contain

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from contextvars import Context

    from ._private import TaskSwitch

__all__ = ["EagerHosts"]

#: How many tasks are parked. One is enough for coroutines that do not wait; coroutines that do, and come in
#: a burst, begin as ordinary tasks from the next one on.
PARKED = 4


class _Host:
    """A task that is parked, or drives a coroutine."""

    __slots__ = ("_awaited", "_cancel_at_start", "_context", "_coro", "_parking", "_started", "task")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, None] | None, context: Context | None
    ) -> None:
        self._coro = coro
        self._context = context
        self._awaited: Any = None
        self._started = self._cancel_at_start = False
        self._parking = loop.create_future() if coro is None else None
        self.task = asyncio.Task(self._main(), loop=loop)

    @property
    def parked(self) -> bool:
        """Whether it waits for a coroutine, and has begun to (what has not begun cannot be woken)."""
        parking = self._parking
        return self._started and parking is not None and not parking.done()

    @property
    def done(self) -> bool:
        return self.task.done()

    def cancel(self) -> None:
        if self._started:
            self.task.cancel()
        else:
            # asyncio drops a task that is cancelled before it began; a coroutine shall begin, and clean up.
            self._cancel_at_start = True

    def adopt(self, coro: Coroutine[Any, Any, None], context: Context, awaited: Any) -> None:
        """Go on with ``coro``, which has just begun to wait for ``awaited``."""
        assert self._parking is not None
        self._coro = coro
        self._context = context
        self._awaited = awaited
        if not self._parking.done():
            self._parking.set_result(None)

    async def _main(self) -> None:
        self._started = True
        if self._cancel_at_start:
            self.task.cancel()
        await self._drive()

    @types.coroutine
    def _drive(self) -> Generator[Any, Any, None]:
        sent: Any = None
        error: BaseException | None = None
        if self._parking is not None:
            try:
                yield from self._parking
            except BaseException as exc:
                if self._coro is None:
                    raise  # the end of the loop, or of its owner
                # Cancelled before it could wait: as asyncio does, cancel what it would have waited for.
                cancel = getattr(self._awaited, "cancel", None)
                if cancel is None or not cancel():
                    error = exc
            if error is None:
                try:
                    sent = yield self._awaited
                except BaseException as exc:
                    error = exc
            self._parking = self._awaited = None
        coro, context = self._coro, self._context
        assert coro is not None
        assert context is not None
        while True:
            try:
                if error is None:
                    awaited = context.run(coro.send, sent)
                else:
                    thrown, error = error, None
                    awaited = context.run(coro.throw, thrown)
            except StopIteration:
                return
            try:
                sent = yield awaited
            except BaseException as exc:
                error = exc


def _first_step(
    loop: asyncio.AbstractEventLoop,
    enter: TaskSwitch,
    leave: TaskSwitch,
    running: asyncio.Task[Any] | None,
    task: asyncio.Task[Any],
    coro: Coroutine[Any, Any, Any],
    context: Context,
    ended: object,
) -> Any:
    """As ``first_step()`` of ``_step.pyx``, where that cannot be used."""
    if running is not None:
        leave(loop, running)
    enter(loop, task)
    try:
        return context.run(coro.send, None)
    except StopIteration:
        return ended
    finally:
        leave(loop, task)
        if running is not None:
            enter(loop, running)


try:
    from ._step import first_step
except ImportError:  # built for another Python
    first_step = _first_step

_ENDED = object()


def _never(loop: asyncio.AbstractEventLoop, task: object) -> None:
    raise AssertionError("no task is parked")


class EagerHosts:
    """Starts coroutines that handle their own exceptions, in one event loop."""

    __slots__ = ("_closed", "_enter", "_leave", "_loop", "_nested", "_parked")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._nested = False
        switch = task_switch(loop)
        # Without it no task is parked, and every coroutine begins as a task of its own.
        self._closed = switch is None
        self._enter: TaskSwitch
        self._leave: TaskSwitch
        self._enter, self._leave = switch if switch is not None else (_never, _never)
        self._parked: list[_Host] = []
        self._park()

    def start(self, coro: Coroutine[Any, Any, None], context: Context) -> _Host | None:
        """Begin ``coro``, or at least soon; None when it has ended already."""
        parked = self._parked
        # A coroutine that is begun inside the first step of another one begins as a task: no deep stacks.
        if self._nested or not parked or not parked[-1].parked:
            return _Host(self._loop, coro, context)
        host = parked.pop()
        loop = self._loop
        task = host.task
        running = current_task(loop)
        self._nested = True
        try:
            awaited = first_step(loop, self._enter, self._leave, running, task, coro, context, _ENDED)
        except BaseException as error:
            task.cancel()
            self._park()
            if not isinstance(error, asyncio.CancelledError) and not contain(error):
                message = "a coroutine failed in its first step"
                loop.call_exception_handler({"message": message, "exception": error, "task": task})
            return None
        finally:
            self._nested = False
        if awaited is _ENDED:
            if task.cancelling():
                # A cancellation of a coroutine that has ended: it must not reach the next one.
                task.cancel()
                self._park()
            else:
                parked.append(host)
            return None
        host.adopt(coro, context, awaited)
        self._park()
        return host

    def is_cancelled(self) -> bool:
        # A task that nobody has cancelled gets the exception from what it awaits.
        task = current_task(self._loop)
        return task is not None and task.cancelling() > 0

    def _park(self) -> None:
        parked = self._parked
        while len(parked) < PARKED and not self._closed:
            # In front: those at the end have begun for certain.
            parked.insert(0, _Host(self._loop, None, None))

    def close(self) -> None:
        """End the parked tasks. What runs goes on; later coroutines begin as ordinary tasks."""
        self._closed = True
        parked, self._parked = self._parked, []
        for host in parked:
            host.task.cancel()
