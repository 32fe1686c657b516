"""The waker of asyncio and uvloop loops."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
from typing import TYPE_CHECKING, Any

import anyio.lowlevel

from ..borrowed import ENABLED
from . import clock
from ._eager import EagerHosts
from ._private import cancel_checks, new_wake_ups, ready_queue, running_loop
from .base import SHARE_OPERATIONS
from .ending import Ending, follow_runs, refuse_other_loop
from .turns import Turns

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from .base import Callback, ClosedCallback, EndCallback, Handle, LoopBound, Starter, Waiter

_log = logging.getLogger("aiordma.wake")


def new_waker(loop: asyncio.AbstractEventLoop) -> AsyncioWaker:
    """The waker of a loop that has none yet."""
    # Kept on the loop, not in a table of ours: the loop and its waker refer to each other and die together.
    loop._aiordma_waker = waker = AsyncioWaker(loop)  # type: ignore[attr-defined]
    return waker


class AsyncioWaiter:
    """Where the waiters of :mod:`._waiter` cannot be used."""

    __slots__ = ("_future", "_loop", "_set")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[None] | None = None
        self._set = False

    def set(self) -> None:
        self._set = True
        future = self._future
        if future is not None and not future.done():
            try:
                future.set_result(None)
            except RuntimeError:
                if not self._loop.is_closed():
                    raise

    def clear(self) -> None:
        self._set = False

    async def wait(self) -> None:
        if not self._set:
            if running_loop() is not self._loop:
                refuse_other_loop(self._loop)
            self._check_free()
            self._future = future = self._loop.create_future()
            try:
                await future
            finally:
                self._future = None
        self._set = False

    def _check_free(self) -> None:
        if self._future is not None:  # its task would never be told
            raise RuntimeError("two tasks wait at one waiter")

    async def wait_until(self, deadline: float) -> bool:
        if self._set or deadline == math.inf:
            await self.wait()
            return True
        self._check_free()
        self._future = future = self._loop.create_future()
        timer = self._loop.call_at(deadline, _resolve, future)
        try:
            await future
        finally:
            timer.cancel()
            self._future = None
        was_set, self._set = self._set, False
        return was_set


class AsyncioJob:
    __slots__ = ("_cancelled", "_started", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop, main: Callable[[], Awaitable[None]]) -> None:
        self._started = self._cancelled = False
        coro = self._run(main)
        try:
            self.task = loop.create_task(coro)
        except RuntimeError:  # the loop is closed: a finalizer that runs after the loop's own
            coro.close()
            raise

    @property
    def done(self) -> bool:
        return self.task.done()

    def cancel(self) -> None:
        self._cancelled = True
        # asyncio drops a task that is cancelled before it began; ours shall begin, so that it can clean up.
        if self._started:
            self.task.cancel()

    async def _run(self, main: Callable[[], Awaitable[None]]) -> None:
        self._started = True
        if self._cancelled:
            self.task.cancel()
        try:
            await main()
        except Exception:
            _log.exception("background task %r failed", main)


class AsyncioWaker(Turns):
    __slots__ = (
        "_add_reader",
        "_add_writer",
        "_end_hook",
        "_ending",
        "_jobs",
        "_loop",
        "_remove_reader",
        "_remove_writer",
        "_wake_ups",
        "_watched",
        "_watched_writable",
        "call_at",
        "locals",
        "name",
        "now",
        "pid",
        "ready",
        "thread",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # In debug mode every operation yields.
        super().__init__(clock.of_asyncio_loop(loop), 0 if loop.get_debug() else SHARE_OPERATIONS)
        self._loop = loop
        #: The thread it runs in.
        self.thread = threading.get_ident()
        self.name = "uvloop" if type(loop).__module__.partition(".")[0] == "uvloop" else "asyncio"
        self.call_at: Callable[[float, Callback], Handle] = loop.call_at
        self.now: Callable[[], float] = loop.time
        self.ready = ready_queue(loop)
        self._wake_ups = new_wake_ups(loop, self.thread, self.ready)
        self.learn_of_cancellation(*cancel_checks(self))
        # asyncio's public methods refuse the descriptor of a transport, so that programs keep off it.
        theirs = loop if ENABLED else None
        self._add_reader: Any = getattr(theirs, "_add_reader", loop.add_reader)
        self._remove_reader: Any = getattr(theirs, "_remove_reader", loop.remove_reader)
        self._add_writer: Any = getattr(theirs, "_add_writer", loop.add_writer)
        self._remove_writer: Any = getattr(theirs, "_remove_writer", loop.remove_writer)
        self._watched: set[int] = set()
        self._watched_writable: set[int] = set()
        self._jobs: set[asyncio.Task[None]] = set()
        self._ending: Ending | None = None
        self._end_hook: AsyncGenerator[None, None] | None = None
        self.pid = os.getpid()
        self.locals: dict[Any, Any] = {}

    # -- readiness of file descriptors

    def watch_fd(self, fd: int, callback: Callback, *, instead: bool = False) -> None:
        if fd in self._watched and not instead:
            raise ValueError(f"fd {fd} is watched already: unwatch_fd() it first")
        self._add_reader(fd, self._resuming(callback))
        self._watched.add(fd)

    def unwatch_fd(self, fd: int) -> None:
        if fd in self._watched:
            self._watched.discard(fd)
            # A callback that is ready but has not run yet is cancelled with the reader.
            if not self._loop.is_closed():
                self._remove_reader(fd)

    def watch_writable(self, fd: int, callback: Callback) -> None:
        if fd in self._watched_writable:
            raise ValueError(f"fd {fd} is watched already: unwatch_writable() it first")
        self._add_writer(fd, self._resuming(callback))
        self._watched_writable.add(fd)

    def unwatch_writable(self, fd: int) -> None:
        if fd in self._watched_writable:
            self._watched_writable.discard(fd)
            if not self._loop.is_closed():
                self._remove_writer(fd)

    def _resuming(self, callback: Callback) -> Callback:
        return callback if self._wake_ups is None else self._wake_ups.watched(callback)

    async def wait_readable(self, fd: int) -> None:
        if fd in self._watched:
            raise ValueError(f"fd {fd} is watched already: unwatch_fd() it first")
        future: asyncio.Future[None] = self._loop.create_future()
        self._add_reader(fd, _resolve, future)
        try:
            await future
        finally:
            self._remove_reader(fd)

    async def wait_writable(self, fd: int) -> None:
        if fd in self._watched_writable:
            raise ValueError(f"fd {fd} is watched already: unwatch_writable() it first")
        future: asyncio.Future[None] = self._loop.create_future()
        self._add_writer(fd, _resolve, future)
        try:
            await future
        finally:
            self._remove_writer(fd)

    # -- waiting and calling

    def new_waiter(self) -> Waiter:
        wake_ups = self._wake_ups
        return AsyncioWaiter(self._loop) if wake_ups is None else wake_ups.new_waiter()

    def call_soon(self, callback: Callback) -> None:
        self._loop.call_soon(callback)

    def busy(self) -> bool | None:
        ready = self.ready
        return None if ready is None else bool(ready)

    def at_loop_end(self, callback: EndCallback, when_closed: ClosedCallback | None = None) -> None:
        self._watched_end().add(callback, when_closed)

    def follow_runs(self, told: Callable[[bool], None]) -> None:
        follow_runs(self._loop, told)

    def bind(self, what: LoopBound) -> None:
        self._watched_end().bind(what)

    def bound(self) -> list[LoopBound]:
        return [] if self._ending is None else self._ending.bound()

    def _watched_end(self) -> Ending:
        if self._ending is None:
            self._ending = Ending()
            self._ending.follow_close(self._loop)
        if self._end_hook is None:
            # asyncio has no hook for its end but one: async generators that were begun are closed by
            # shutdown_asyncgens(), which asyncio.run(), uvloop.run() and every test runner call.
            self._end_hook = hook = self._run_at_end(self._ending)
            try:
                hook.asend(None).send(None)
            except StopIteration:
                pass
        return self._ending

    async def _run_at_end(self, ending: Ending) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await ending.run()
            self._end_hook = None

    def __del__(self) -> None:
        # The loop was dropped, or closed in a way that could not be followed.
        if self._ending is not None and self.pid == os.getpid():
            self._ending.run_now(patient=False)

    def call_from_anywhere(self, callback: Callback) -> bool:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # it is closed
            return False
        return True

    @property
    def debug(self) -> bool:
        return self._loop.get_debug()

    @property
    def elsewhere(self) -> bool:
        return running_loop() is not self._loop and self._loop.is_running()

    def check_thread(self) -> None:
        if self.elsewhere:
            raise RuntimeError(
                "Non-thread-safe operation: this object's event loop runs in another thread. Call it there, "
                "by loop.call_soon_threadsafe(), asyncio.run_coroutine_threadsafe() or anyio.from_thread"
            )

    def check_loop(self) -> None:
        if running_loop() is not self._loop:
            refuse_other_loop(self._loop)

    def spawn(self, main: Callable[[], Awaitable[None]]) -> AsyncioJob:
        job = AsyncioJob(self._loop, main)
        self._jobs.add(job.task)
        job.task.add_done_callback(self._jobs.discard)
        return job

    def new_starter(self) -> Starter:
        return EagerHosts(self._loop)

    # -- checkpoints and fairness

    async def checkpoint(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.renew_share()

    async def begin(self) -> None:
        await (self.cancel_check() if self.share > 0 else self.checkpoint())

    async def cancel_check(self) -> None:
        if self.cancel_requested():
            # The exception itself can only be delivered by the loop, to a task that waits.
            await anyio.lowlevel.checkpoint_if_cancelled()
            await anyio.lowlevel.checkpoint()

    async def shielded_yield(self) -> None:
        """Nothing to do: an operation yields before it takes anything, and only when its share is used up."""


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
