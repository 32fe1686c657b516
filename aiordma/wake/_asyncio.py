"""The waker of asyncio and uvloop loops."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import TYPE_CHECKING

import anyio.lowlevel

from ._eager import EagerHosts
from ._private import cancel_requested, ready_queue
from .base import SHARE_OPERATIONS, SHARE_SECONDS, run_at_end

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from .base import Callback, EndCallback, Handle, Starter

_log = logging.getLogger("aiordma.wake")

_ATTRIBUTE = "_aiordma_waker"


def of_loop(loop: asyncio.AbstractEventLoop) -> AsyncioWaker:
    # Kept on the loop, not in a table of ours: the loop and its waker refer to each other and die together.
    try:
        return loop._aiordma_waker  # type: ignore[attr-defined, no-any-return]
    except AttributeError:
        waker = AsyncioWaker(loop)
        setattr(loop, _ATTRIBUTE, waker)
        return waker


class AsyncioWaiter:
    __slots__ = ("_future", "_loop", "_set")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[None] | None = None
        self._set = False

    def set(self) -> None:
        self._set = True
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)

    def clear(self) -> None:
        self._set = False

    async def wait(self) -> None:
        if not self._set:
            self._future = future = self._loop.create_future()
            try:
                await future
            finally:
                self._future = None
        self._set = False

    async def wait_until(self, deadline: float) -> bool:
        if self._set or deadline == math.inf:
            await self.wait()
            return True
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
        self.task = loop.create_task(self._run(main))

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


class AsyncioWaker:
    __slots__ = (
        "_end_callbacks",
        "_end_hook",
        "_jobs",
        "_loop",
        "_share_ends",
        "_watched",
        "_watched_writable",
        "call_at",
        "name",
        "now",
        "ready",
        "share",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.name = "uvloop" if type(loop).__module__.partition(".")[0] == "uvloop" else "asyncio"
        self.share = SHARE_OPERATIONS
        self._share_ends = time.monotonic() + SHARE_SECONDS
        self.call_at: Callable[[float, Callback], Handle] = loop.call_at
        self.now: Callable[[], float] = loop.time
        self.ready = ready_queue(loop)
        self._watched: set[int] = set()
        self._watched_writable: set[int] = set()
        self._jobs: set[asyncio.Task[None]] = set()
        self._end_callbacks: list[EndCallback] = []
        self._end_hook: AsyncGenerator[None, None] | None = None

    # -- readiness of file descriptors

    def watch_fd(self, fd: int, callback: Callback) -> None:
        if fd in self._watched:
            raise ValueError(f"fd {fd} is watched already: unwatch_fd() it first")
        self._loop.add_reader(fd, callback)
        self._watched.add(fd)

    def unwatch_fd(self, fd: int) -> None:
        if fd in self._watched:
            self._watched.discard(fd)
            # A callback that is ready but has not run yet is cancelled with the reader.
            if not self._loop.is_closed():
                self._loop.remove_reader(fd)

    def watch_writable(self, fd: int, callback: Callback) -> None:
        if fd in self._watched_writable:
            raise ValueError(f"fd {fd} is watched already: unwatch_writable() it first")
        self._loop.add_writer(fd, callback)
        self._watched_writable.add(fd)

    def unwatch_writable(self, fd: int) -> None:
        if fd in self._watched_writable:
            self._watched_writable.discard(fd)
            if not self._loop.is_closed():
                self._loop.remove_writer(fd)

    async def wait_readable(self, fd: int) -> None:
        if fd in self._watched:
            raise ValueError(f"fd {fd} is watched already: unwatch_fd() it first")
        future: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(fd, _resolve, future)
        try:
            await future
        finally:
            self._loop.remove_reader(fd)

    async def wait_writable(self, fd: int) -> None:
        if fd in self._watched_writable:
            raise ValueError(f"fd {fd} is watched already: unwatch_writable() it first")
        future: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(fd, _resolve, future)
        try:
            await future
        finally:
            self._loop.remove_writer(fd)

    # -- waiting and calling

    def new_waiter(self) -> AsyncioWaiter:
        return AsyncioWaiter(self._loop)

    def call_soon(self, callback: Callback) -> None:
        self._loop.call_soon(callback)

    def busy(self) -> bool | None:
        ready = self.ready
        return None if ready is None else bool(ready)

    def at_loop_end(self, callback: EndCallback) -> None:
        if self._end_hook is None:
            # asyncio has no hook for its end but one: async generators that were begun are closed by
            # shutdown_asyncgens(), which asyncio.run(), uvloop.run() and every test runner call.
            self._end_hook = hook = self._run_at_end()
            try:
                hook.asend(None).send(None)
            except StopIteration:
                pass
        self._end_callbacks.append(callback)

    async def _run_at_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            while self._end_callbacks:
                await run_at_end(self._end_callbacks.pop())
            self._end_hook = None

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
        self.share = SHARE_OPERATIONS
        self._share_ends = time.monotonic() + SHARE_SECONDS

    async def cancel_check(self) -> None:
        if self.cancel_requested():
            # The exception itself can only be delivered by the loop, to a task that waits.
            await anyio.lowlevel.checkpoint_if_cancelled()
            await anyio.lowlevel.checkpoint()

    async def shielded_yield(self) -> None:
        """Nothing to do: an operation yields before it takes anything, and only when its share is used up."""

    cancel_requested = cancel_requested

    def renew_share(self) -> None:
        self.share = SHARE_OPERATIONS
        self._share_ends = time.monotonic() + SHARE_SECONDS

    def share_overdue(self) -> bool:
        return time.monotonic() > self._share_ends


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
