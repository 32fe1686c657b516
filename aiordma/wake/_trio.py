"""The waker of a trio run."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import os
from collections import deque
from typing import TYPE_CHECKING, Any

import trio

from . import _trio_device, clock
from .base import run_guarded
from .ending import Ending, refuse_other_loop
from .escaping import ENDS_PROGRAM
from .interrupts import protect_with

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
    from contextvars import Context

    from .base import Callback, ClosedCallback, EndCallback, LoopBound

_log = logging.getLogger("aiordma.wake")

protect_with(trio.lowlevel.enable_ki_protection)

#: trio's own: `aiordma run --report` replaces them, to count the sockets that the program waits for itself.
_wait_readable: Callable[[int], Awaitable[None]] = getattr(
    trio.lowlevel.wait_readable, "aiordma_own", trio.lowlevel.wait_readable
)
_wait_writable: Callable[[int], Awaitable[None]] = getattr(
    trio.lowlevel.wait_writable, "aiordma_own", trio.lowlevel.wait_writable
)

_current: trio.lowlevel.RunVar[TrioWaker] = trio.lowlevel.RunVar("aiordma waker")


def current() -> TrioWaker:
    try:
        return _current.get()
    except LookupError:
        waker = TrioWaker()
        _current.set(waker)
        return waker


class TrioWaiter:
    __slots__ = ("_set", "_task")

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None
        self._set = False

    def set(self) -> None:
        self._set = True
        task = self._task
        if task is not None:
            self._task = None
            trio.lowlevel.reschedule(task)

    def clear(self) -> None:
        self._set = False

    async def wait(self) -> None:
        if not self._set:
            if self._task is not None:  # it would never be told
                raise RuntimeError("two tasks wait at one waiter")
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        self._set = False

    async def wait_until(self, deadline: float) -> bool:
        with trio.CancelScope(deadline=deadline) as scope:
            await self.wait()
        return not scope.cancelled_caught

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class TrioJob:
    __slots__ = ("_scope", "done")

    def __init__(self) -> None:
        self._scope = trio.CancelScope()
        self.done = False

    def cancel(self) -> None:
        self._scope.cancel()

    async def run(self, main: Callable[[], Awaitable[None]]) -> None:
        try:
            with self._scope:
                await main()
        except BaseException as error:
            # What escapes a system task ends the whole trio run.
            if _passes(error):
                raise
            _log.exception("background task %r failed", main)
        finally:
            self.done = True


def _passes(error: BaseException) -> bool:
    """Whether an exception of a task is a cancellation, or to end the program; or has such a one in it."""
    kinds = (trio.Cancelled, *ENDS_PROGRAM)
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(kinds) is not None
    return isinstance(error, kinds)


class TrioStarter:
    """Every coroutine gets a task: trio cannot run a step of one in another task."""

    def start(self, coro: Coroutine[Any, Any, None], context: Context) -> TrioJob:
        job = TrioJob()
        trio.lowlevel.spawn_system_task(job.run, lambda: coro, name="aiordma coroutine", context=context)
        return job

    def call(
        self, function: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any], context: Context
    ) -> Any:
        return context.run(function, *args, **kwargs)

    def is_cancelled(self) -> bool:
        return True  # there is no other way to get the exception

    def close(self) -> None:
        """Nothing was made in advance."""


class _Watch:
    """One fd: a system task that waits for it and calls back."""

    __slots__ = ("_fd", "_scope", "_wait", "callback", "ended")

    def __init__(self, fd: int, wait: Callable[[int], Awaitable[None]], callback: Callback) -> None:
        self._fd = fd
        self._wait = wait
        self.callback = callback
        self._scope = trio.CancelScope()
        self.ended = False

    async def run(self) -> None:
        try:
            with self._scope:
                # An ended watch must not touch its fd again: the number may belong to another file by now.
                while not self.ended:
                    await self._wait(self._fd)
                    if not self.ended:
                        run_guarded(self.callback)
        except (OSError, trio.ClosedResourceError):
            _log.exception("fd %d cannot be watched any longer: it was closed before unwatch_fd()", self._fd)

    def end(self) -> None:
        self.ended = True
        # The cancellation takes the fd out of epoll before this returns.
        self._scope.cancel()


class TrioTimer:
    """A callback that waits for its time."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callback) -> None:
        self.when = when
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        self.callback = None


class TrioWaker:
    name = "trio"
    share = 0
    ready = None

    def __init__(self) -> None:
        of_run = trio.lowlevel.current_clock()
        self.clock = clock.of_trio_run(of_run)
        if not self.clock.real:
            _trio_device.follow(of_run)
        self._watches: dict[int, _Watch] = {}
        self._writable_watches: dict[int, _Watch] = {}
        self._soon: deque[Callback] = deque()
        self._soon_waiter: TrioWaiter | None = None
        self._timers: list[tuple[float, int, TrioTimer]] = []
        self._timer_numbers = itertools.count()
        self._timer_waiter: TrioWaiter | None = None
        self._ending = Ending()
        self._has_end_hook = False
        self._token = trio.lowlevel.current_trio_token()
        self.pid = os.getpid()
        self.locals: dict[Any, Any] = {}

    # -- readiness of file descriptors

    def watch_fd(self, fd: int, callback: Callback, *, instead: bool = False) -> None:
        if instead and (known := self._watches.get(fd)) is not None:
            known.callback = callback
            return
        if fd in self._watches:
            raise ValueError(f"fd {fd} is watched already: unwatch_fd() it first")
        self._watches[fd] = watch = _Watch(fd, _wait_readable, callback)
        trio.lowlevel.spawn_system_task(watch.run, name=f"aiordma watch of fd {fd}")

    def unwatch_fd(self, fd: int) -> None:
        watch = self._watches.pop(fd, None)
        if watch is not None:
            watch.end()

    def watch_writable(self, fd: int, callback: Callback) -> None:
        if fd in self._writable_watches:
            raise ValueError(f"fd {fd} is watched already: unwatch_writable() it first")
        self._writable_watches[fd] = watch = _Watch(fd, _wait_writable, callback)
        trio.lowlevel.spawn_system_task(watch.run, name=f"aiordma watch of fd {fd} for writing")

    def unwatch_writable(self, fd: int) -> None:
        watch = self._writable_watches.pop(fd, None)
        if watch is not None:
            watch.end()

    async def wait_readable(self, fd: int) -> None:
        if fd in self._watches:
            raise ValueError(f"fd {fd} is watched already: unwatch_fd() it first")
        await _wait_readable(fd)

    async def wait_writable(self, fd: int) -> None:
        if fd in self._writable_watches:
            raise ValueError(f"fd {fd} is watched already: unwatch_writable() it first")
        await _wait_writable(fd)

    # -- waiting and calling

    def new_waiter(self) -> TrioWaiter:
        return TrioWaiter()

    def call_soon(self, callback: Callback) -> None:
        # trio's own call_soon is built for other threads and costs a system call; a parked task costs none.
        self._soon.append(callback)
        if self._soon_waiter is None:
            self._soon_waiter = TrioWaiter()
            trio.lowlevel.spawn_system_task(self._run_soon, name="aiordma callbacks")
        self._soon_waiter.set()

    async def _run_soon(self) -> None:
        assert self._soon_waiter is not None
        while True:
            await self._soon_waiter.wait()
            for _ in range(len(self._soon)):
                run_guarded(self._soon.popleft())
            if self._soon:
                # Callbacks that were added by callbacks wait for the next turn.
                self._soon_waiter.set()
                await trio.lowlevel.cancel_shielded_checkpoint()

    def call_at(self, when: float, callback: Callback) -> TrioTimer:
        timer = TrioTimer(when, callback)
        first = self._timers[0][0] if self._timers else math.inf
        heapq.heappush(self._timers, (when, next(self._timer_numbers), timer))
        if self._timer_waiter is None:
            self._timer_waiter = TrioWaiter()
            trio.lowlevel.spawn_system_task(self._run_timers, name="aiordma timers")
        elif when < first:
            self._timer_waiter.set()
        return timer

    async def _run_timers(self) -> None:
        assert self._timer_waiter is not None
        while True:
            now = trio.current_time()
            while self._timers and (self._timers[0][0] <= now or self._timers[0][2].callback is None):
                callback = heapq.heappop(self._timers)[2].callback
                if callback is not None:
                    run_guarded(callback)
            with trio.CancelScope(deadline=self._timers[0][0] if self._timers else math.inf):
                await self._timer_waiter.wait()

    def now(self) -> float:
        return trio.current_time()

    def busy(self) -> bool | None:
        return trio.lowlevel.current_statistics().tasks_runnable > 0

    def at_loop_end(self, callback: EndCallback, when_closed: ClosedCallback | None = None) -> None:
        self._watch_end()
        self._ending.add(callback, when_closed)

    def follow_runs(self, told: Callable[[bool], None]) -> None:
        """Nothing to do: a run ends once, and in order."""

    def bind(self, what: LoopBound) -> None:
        self._watch_end()
        self._ending.bind(what)

    def bound(self) -> list[LoopBound]:
        return self._ending.bound()

    def _watch_end(self) -> None:
        if not self._has_end_hook:
            self._has_end_hook = True
            trio.lowlevel.spawn_system_task(self._run_at_end, name="aiordma end of loop")

    async def _run_at_end(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await self._ending.run()

    def call_from_anywhere(self, callback: Callback) -> bool:
        try:
            self._token.run_sync_soon(run_guarded, callback)
        except trio.RunFinishedError:
            return False
        return True

    @property
    def debug(self) -> bool:
        return False  # trio has no such mode

    @property
    def elsewhere(self) -> bool:
        try:
            return trio.lowlevel.current_trio_token() is not self._token
        except RuntimeError:  # no trio runs in this thread
            return True

    def check_thread(self) -> None:
        """Nothing: it is for :attr:`debug` only."""

    def check_loop(self) -> None:
        try:
            if trio.lowlevel.current_trio_token() is self._token:
                return
        except RuntimeError:
            pass  # no trio runs in this thread
        refuse_other_loop(self._token)

    def spawn(self, main: Callable[[], Awaitable[None]]) -> TrioJob:
        job = TrioJob()
        trio.lowlevel.spawn_system_task(job.run, main, name=f"aiordma {getattr(main, '__qualname__', main)}")
        return job

    def new_starter(self) -> TrioStarter:
        return TrioStarter()

    # -- checkpoints: trio's rule is that every call is one

    async def checkpoint(self) -> None:
        await trio.lowlevel.checkpoint()

    async def begin(self) -> None:
        await trio.lowlevel.checkpoint()

    async def cancel_check(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()

    async def shielded_yield(self) -> None:
        await trio.lowlevel.cancel_shielded_checkpoint()

    def cancel_requested(self) -> bool:
        return trio.current_effective_deadline() == -math.inf

    def may_begin(self) -> bool:
        return False

    def count(self, more: int) -> None:
        """Nothing is left to count from."""

    count_polled = count

    def renew_share(self) -> None:
        """Nothing to renew: every call yields."""

    def share_overdue(self) -> bool:
        return True
