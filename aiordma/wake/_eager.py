"""Coroutines that begin at once, on asyncio: many a handler never waits, and then it needs no task.

A new task costs an event loop its creation, a place in the queue, and a turn.
``asyncio.Task(eager_start=True)`` saves the last two, from Python 3.12 on. Here the first step needs none of
them: it runs at once *as* a task that was made before and is parked (``asyncio._enter_task``, documented for
extensions of asyncio). So ``current_task()``, timeouts, task groups and cancel scopes work from the first
line of the coroutine. If it waits, the parked task wakes up, waits for the very same future instead, and
drives the coroutine to its end: from then on it is the coroutine's own task, and never serves another one.

If the first step ends the coroutine, the parked task stays parked for the next one, but only if that
cannot be noticed: its name was not asked for or set, it has no callbacks and no attributes, it was not
cancelled, and nothing refers to it that did not before, strongly or weakly. Else it ends, as the coroutine's
own task would, and its callbacks are called. So tasks may be keys of what a program keeps for each call.
(``id()`` of a task alone is none in asyncio either: the next task has the same one.)

The coroutine runs in a context of its own (``contextvars``) in all cases.
"""

from __future__ import annotations

import asyncio
import sys
import types
from typing import TYPE_CHECKING, Any
from weakref import getweakrefcount

from ._private import current_task, task_switch
from .escaping import contain

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
    from contextvars import Context

    from ._private import TaskSwitch

#: How many tasks are parked. One is enough for coroutines that do not wait; coroutines that do, and come in
#: a burst, begin as ordinary tasks from the next one on.
PARKED = 4


#: The numbers of references tell who has a task. Without the GIL they do not.
_COUNTED: bool = getattr(sys, "_is_gil_enabled", lambda: True)()


class _Task(asyncio.Task[None]):
    """A task that notes what is done with it and stays."""

    touched = False

    def touch(self) -> None:
        super().__setattr__("touched", True)

    def __setattr__(self, name: str, value: Any) -> None:
        self.touch()
        super().__setattr__(name, value)

    def get_name(self) -> str:
        self.touch()
        return super().get_name()

    def set_name(self, value: object) -> None:
        self.touch()
        super().set_name(value)

    def get_coro(self) -> Any:
        self.touch()
        return super().get_coro()

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        self.touch()
        super().add_done_callback(fn, context=context)

    def cancel(self, msg: Any = None) -> bool:
        self.touch()
        return super().cancel(msg)


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
        self.task = _Task(self._main(), loop=loop)

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

    def retire(self) -> None:
        """Its coroutine has ended, and it must not serve another one: let the task end."""
        assert self._parking is not None
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
            if self._coro is None:
                return  # retired
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


def _first_step(  # noqa: PLR0913  # as the compiled one
    loop: asyncio.AbstractEventLoop,
    enter: TaskSwitch,
    leave: TaskSwitch,
    running: asyncio.Task[Any] | None,
    task: asyncio.Task[Any],
    coro: Coroutine[Any, Any, Any],
    context: Context,
    ended: object,
    kept: object,
) -> Any:
    """As ``first_step()`` of ``_step.pyx``, where that cannot be used."""
    references, weak = sys.getrefcount(task), getweakrefcount(task)
    if running is not None:
        leave(loop, running)
    enter(loop, task)
    try:
        return context.run(coro.send, None)
    except StopIteration:
        pass
    finally:
        leave(loop, task)
        if running is not None:
            enter(loop, running)
    return ended if sys.getrefcount(task) == references and getweakrefcount(task) == weak else kept


def _call_apart(
    loop: asyncio.AbstractEventLoop,
    enter: TaskSwitch,
    leave: TaskSwitch,
    running: asyncio.Task[Any] | None,
    function: Callable[..., Any],
    args: Iterable[Any],
    kwargs: Mapping[str, Any],
    context: Context,
) -> Any:
    """As ``call_apart()`` there."""
    if running is not None:
        leave(loop, running)
    try:
        return context.run(function, *args, **kwargs)
    finally:
        if running is not None:
            enter(loop, running)


try:
    from ._step import call_apart, first_step
except ImportError:  # built for another Python
    call_apart, first_step = _call_apart, _first_step

_ENDED = object()
_KEPT = object()


def _never(loop: asyncio.AbstractEventLoop, task: object) -> None:
    raise AssertionError("no task is parked")


class EagerHosts:
    """Starts coroutines that handle their own exceptions, in one event loop."""

    __slots__ = ("_closed", "_enter", "_leave", "_loop", "_nested", "_parked", "_switches")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._nested = False
        switch = task_switch(loop)
        # Without it no task is parked, and every coroutine begins as a task of its own.
        self._closed = switch is None
        self._switches = switch is not None
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
            awaited = first_step(loop, self._enter, self._leave, running, task, coro, context, _ENDED, _KEPT)
        except BaseException as error:
            task.cancel()
            self._park()
            if not isinstance(error, asyncio.CancelledError) and not contain(error):
                message = "a coroutine failed in its first step"
                loop.call_exception_handler({"message": message, "exception": error, "task": task})
            return None
        finally:
            self._nested = False
        if awaited is _ENDED and not task.touched and _COUNTED:
            parked.append(host)
            return None
        if awaited is _ENDED or awaited is _KEPT:
            host.retire()
            self._park()
            return None
        host.adopt(coro, context, awaited)
        self._park()
        return host

    def call(
        self, function: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any], context: Context
    ) -> Any:
        """Call ``function`` in ``context``, and not as the task that runs, which may be anybody's."""
        loop = self._loop
        running = current_task(loop) if self._switches else None
        return call_apart(loop, self._enter, self._leave, running, function, args, kwargs, context)

    def is_cancelled(self) -> bool:
        # A task that was not cancelled gets the exception from what it awaits.
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
