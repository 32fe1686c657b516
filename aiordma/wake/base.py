"""What the rest of the package may ask of an event loop: one small contract, two implementations.

Everything here belongs to one event loop and is called from its thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sized
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .clock import Clock

Callback = Callable[[], None]
EndCallback = Callable[[], Awaitable[None] | None]
ClosedCallback = Callable[[bool], None]

#: How many operations (4 KiB of payload count as one more) may complete in a row on asyncio before one of
#: them gives the loop a turn, and for how many seconds spinning operations may do so.
SHARE_OPERATIONS = 128
SHARE_SECONDS = 0.001

_log = logging.getLogger("aiordma.wake")


def run_guarded(callback: Callback) -> None:
    """Run a callback where an exception would end the program's loop: log it and go on.

    :raises KeyboardInterrupt, SystemExit: they are to end it.
    """
    try:
        callback()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        _log.exception("callback %r failed", callback)


async def run_at_end(callback: EndCallback) -> None:
    """The same at the end of a loop, where a callback may take its time."""
    try:
        ending = callback()
        if ending is not None:
            await ending
    except Exception:
        _log.exception("callback %r failed", callback)


class Waiter(Protocol):
    """A place for one task to wait. A ``set()`` is never lost: it is kept until a ``wait()`` takes it."""

    def set(self) -> None:
        """Let the waiting task, or else the next ``wait()``, go on. Repeated calls count once."""

    def clear(self) -> None:
        """Forget a ``set()`` that no ``wait()`` has taken."""

    def wait(self) -> Awaitable[None]:
        """To be awaited at once. It returns at once (not yielding) when set, else it waits. Cancelled: a
        ``set()`` that came in stays.

        :raises RuntimeError: another task waits here."""

    async def wait_until(self, deadline: float) -> bool:
        """As ``wait()``, but not beyond ``deadline`` (seconds of the waker's clock); whether it was set.

        Costs a timer, where a cancel scope of anyio costs several times that.
        """


class LoopBound(Protocol):
    """Something that cannot be used when its loop has ended."""

    def loop_ended(self) -> None:
        """Release what a loop is not needed for, and refuse to be used from now on."""


class Handle(Protocol):
    """A callback that waits for its time."""

    def cancel(self) -> None:
        """Do not call it; no effect when it was called already."""


class Job(Protocol):
    """A task that runs in the background of the loop."""

    @property
    def done(self) -> bool:
        """True when it has ended, for any reason."""

    def cancel(self) -> None:
        """Ask it to stop; idempotent."""


class Starter(Protocol):
    """Starts coroutines in the background, many and short ones."""

    def start(self, coro: Coroutine[Any, Any, None], context: Context) -> Job | None:
        """Begin ``coro`` in ``context``: at once where the loop allows it (asyncio), else soon. None when it
        has ended already. It must handle its own exceptions; one that escapes is logged.
        """

    def call(
        self, function: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any], context: Context
    ) -> Any:
        """Call ``function`` in ``context``; on asyncio as no task: the one that runs may be anybody's."""

    def is_cancelled(self) -> bool:
        """Whether the coroutine that runs, and has got the loop's exception for that, is cancelled."""

    def close(self) -> None:
        """Release what was made in advance. What runs goes on."""


class Waker(Protocol):
    """The event loop, as this package sees it."""

    #: "asyncio", "uvloop" or "trio".
    name: str
    #: The clock of what runs in the loop, for times that are shorter than the turns of :meth:`now`.
    clock: Clock
    #: What is left of the share of operations that may complete without yielding (see ``SHARE_OPERATIONS``).
    #: Always 0 on trio, where each call is a full checkpoint.
    share: int

    @property
    def ready(self) -> Sized | None:
        """The loop's queue of callbacks that are ready to run, where it can be seen (asyncio); else None."""

    def watch_fd(self, fd: int, callback: Callback, *, instead: bool = False) -> None:
        """Call ``callback`` whenever ``fd`` is readable: level triggered, until ``unwatch_fd``.

        :param instead: of the callback that the fd has, if it is watched: nothing is said to the kernel then.
        :raises ValueError: the fd is watched already.
        """

    def unwatch_fd(self, fd: int) -> None:
        """Stop watching; do this before the fd is closed. The callback is not called again. Idempotent."""

    def watch_writable(self, fd: int, callback: Callback) -> None:
        """The same for "writable", independent of ``watch_fd``."""

    def unwatch_writable(self, fd: int) -> None:
        """Stop watching for "writable". Idempotent."""

    async def wait_readable(self, fd: int) -> None:
        """Wait once until ``fd``, which has no watch, is readable or has failed."""

    async def wait_writable(self, fd: int) -> None:
        """Wait once until ``fd`` is writable or has failed."""

    def new_waiter(self) -> Waiter: ...

    def call_soon(self, callback: Callback) -> None:
        """Call it in the next turn of the loop, after what is ready now."""

    def call_at(self, when: float, callback: Callback) -> Handle:
        """Call it at ``when`` seconds of :meth:`now`."""

    def now(self) -> float:
        """The loop's clock, in seconds."""

    def busy(self) -> bool | None:
        """True when others are ready to run in this loop now; None when this loop does not show it."""

    def at_loop_end(self, callback: EndCallback, when_closed: ClosedCallback | None = None) -> None:
        """Call it once when the loop shuts down; the last one registered is called first.

        What it returns is awaited. On trio nothing is watched any more then: tasks that wait must look.

        :param when_closed: called instead if the loop is closed, or dropped, without having been shut down:
            with True if it may block the thread for a moment. Default: ``callback``, which must not return an
            awaitable then.
        """

    def follow_runs(self, told: Callable[[bool], None]) -> None:
        """Call it with False when the loop is told to stop, or returns, and with True when it runs again. A
        first run that an exception ends is not told, and neither are trio's, which end for good."""

    def bind(self, what: LoopBound) -> None:
        """Call ``what.loop_ended()`` when the loop ends, before the callbacks. Refers to it weakly."""

    def bound(self) -> list[LoopBound]:
        """What was bound and is still there."""

    def call_from_anywhere(self, callback: Callback) -> bool:
        """Call it in the loop, soon; from any thread, and from a finalizer. False: the loop has ended."""

    @property
    def debug(self) -> bool:
        """Whether the loop looks for mistakes that are expensive to find (asyncio's debug mode)."""

    @property
    def elsewhere(self) -> bool:
        """Whether the loop runs, in another thread than the caller's."""

    def check_thread(self) -> None:
        """:raises RuntimeError: the loop runs, in another thread."""

    def check_loop(self) -> None:
        """:raises RuntimeError: the running loop is another one, perhaps in another thread."""

    @property
    def pid(self) -> int:
        """The process of the loop: a forked child has a copy of it."""

    @property
    def locals(self) -> dict[Any, Any]:
        """What others keep for this loop: it lives as long as the loop, and does not keep it alive."""

    def spawn(self, main: Callable[[], Awaitable[None]]) -> Job:
        """Run ``main()`` in the background; an exception that escapes is logged."""

    def new_starter(self) -> Starter: ...

    async def checkpoint(self) -> None:
        """Give others a turn, raise when cancelled, and begin a new share."""

    async def cancel_check(self) -> None:
        """Raise when the calling task has been cancelled; otherwise return without yielding."""

    async def shielded_yield(self) -> None:
        """Give others a turn, not noticing a cancellation: something was taken that must not be lost."""

    def cancel_requested(self) -> bool:
        """True when a ``cancel_check()`` would raise. Costs no more than a few lookups."""

    def may_begin(self) -> bool:
        """Whether an operation may complete at once: something of the share is left, and its task is not
        cancelled. Never so on trio."""

    async def begin(self) -> None:
        """The checkpoint of an operation that may not complete at once: a whole one on trio, and where
        nothing of the share is left.
        """

    def count(self, more: int) -> None:
        """An operation has completed at once.

        :param more: for its size, for instance 1 for each 4 KiB.
        """

    def count_polled(self, more: int) -> None:
        """The same for one that may have polled. That takes time as well: every few operations the clock is
        asked whether the share is over."""

    def renew_share(self) -> None:
        """Begin a new share: the calling task has just really waited, so others had their turn."""

    def share_overdue(self) -> bool:
        """True when the share has lasted for longer than ``SHARE_SECONDS`` (one look at the clock)."""
