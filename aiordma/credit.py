# cython: annotation_typing=False
"""Awaitable back-pressure: a window of credits.

Ring bytes, messages of a link, work requests, READs and calls in flight are all windows of this kind. A
sender acquires credits; the receiver releases them when it has made room. A sender that finds too few waits
its turn.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import NamedTuple, Protocol

from .wake import current


class CreditStatistics(NamedTuple):
    """Counters of a window."""

    limit: int
    #: credits that can be acquired now
    available: int
    #: tasks that wait now
    waiting: int
    #: credits acquired since the beginning
    acquired: int
    #: acquisitions that had to wait
    waits: int
    #: waits that ended by cancellation
    cancelled: int
    #: most credits out at one time
    peak_in_use: int
    #: most tasks waiting at one time
    peak_waiting: int


_MOST = sys.maxsize


def _check_limit(limit: int) -> None:
    if limit < 0:
        raise ValueError(f"limit={limit}: a window cannot have fewer than 0 credits")
    if limit > _MOST:
        raise ValueError(f"limit={limit}: a window cannot have more than {_MOST} credits")


class Granted(Protocol):
    """What waits for credits."""

    def set(self) -> None:
        """They are there, or the window is closed."""


class QueueEntry:
    """A place in the queue: of a task, or of :meth:`CreditWindow.request`."""

    def __init__(self, n: int, waiter: Granted) -> None:
        self.n = n
        self.waiter = waiter
        self.granted = False


class CreditWindow:
    """``limit`` credits, granted first come, first served.

    There is no overtaking: while a task waits, :meth:`try_acquire` fails, however few credits it asks for. A
    cancelled :meth:`acquire` has taken nothing. A window belongs to one event loop and one thread.

    :param limit: credits in the window.
    :raises ValueError: a negative limit.
    """

    def __init__(self, limit: int) -> None:
        _check_limit(limit)
        self._limit = limit
        self._available = limit
        self._queue: OrderedDict[QueueEntry, None] = OrderedDict()
        self._exc: BaseException | None = None
        self._acquired = self._waits = self._cancelled = self._peak_in_use = self._peak_waiting = 0

    @property
    def limit(self) -> int:
        """Credits in the window, taken or not."""
        return self._limit

    @property
    def available(self) -> int:
        """Credits that can be acquired now; negative when the limit was lowered below what is in use."""
        return self._available

    @property
    def waiting(self) -> int:
        """Tasks that wait for credits."""
        return len(self._queue)

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._exc is not None

    def _check(self, n: int) -> None:
        if not 0 <= n <= self._limit:
            raise ValueError(f"{n} credits can never be had from a window of {self._limit}")

    def try_acquire(self, n: int = 1) -> bool:
        """Acquire ``n`` credits if that is possible at once.

        :raises ValueError: ``n`` is negative or exceeds the limit.
        :raises BaseException: what :meth:`close` was given.
        """
        if self._exc is not None:
            raise self._exc.with_traceback(None)
        available = self._available
        try:
            wanted = n
        except OverflowError:
            wanted = -1  # so that the check refuses it
        if wanted > available or wanted < 0 or self._queue:
            self._check(n)
            return False
        # As _take(); every short operation on a link passes here.
        self._available = available = available - wanted
        self._acquired += wanted
        if self._limit - available > self._peak_in_use:
            self._peak_in_use = self._limit - available
        return True

    def _take(self, n: int) -> None:
        self._available -= n
        self._acquired += n
        in_use = self._limit - self._available
        if in_use > self._peak_in_use:
            self._peak_in_use = in_use

    async def acquire(self, n: int = 1) -> None:
        """Acquire ``n`` credits; wait as long as needed.

        :raises ValueError: ``n`` is negative or exceeds the limit.
        :raises BaseException: what :meth:`close` was given, before or during the wait.
        """
        waker = current()
        if waker.cancel_requested():
            await waker.cancel_check()
        if self.try_acquire(n):
            # The credits are acquired before the yield, and released if the yield brings a cancellation.
            if waker.share > 0:
                waker.share -= 1
                return
            try:
                await waker.checkpoint()
            except BaseException:
                self.release(n)
                raise
            return

        waiter = waker.new_waiter()
        entry = self._queued(n, waiter)
        try:
            await waiter.wait()
        except BaseException:
            self.withdraw(entry)
            raise
        if not entry.granted:
            assert self._exc is not None
            raise self._exc.with_traceback(None)

    def request(self, n: int, waiter: Granted) -> QueueEntry:
        """Ask for ``n`` credits without waiting, in turn with those that wait.

        :param waiter: its ``set()`` is called when they are there (``granted`` of the result), or the window
            is closed.
        :raises ValueError: ``n`` is negative or exceeds the limit. :raises BaseException: it is closed.
        """
        if self._exc is not None:
            raise self._exc.with_traceback(None)
        self._check(n)
        entry = self._queued(n, waiter)
        self._serve()
        return entry

    def _queued(self, n: int, waiter: Granted) -> QueueEntry:
        entry = QueueEntry(n, waiter)
        self._queue[entry] = None
        self._waits += 1
        self._peak_waiting = max(self._peak_waiting, len(self._queue))
        return entry

    def withdraw(self, entry: QueueEntry) -> None:
        """Give up a request; credits that were granted by it are released."""
        self._cancelled += 1
        if entry.granted:
            self.release(entry.n)
        elif self._queue.pop(entry, self) is None:
            self._serve()  # later requests may fit where this one did not

    def release(self, n: int = 1) -> None:
        """Release ``n`` credits; waiting tasks get them in order.

        :raises ValueError: more than are out.
        """
        try:
            count = n
        except OverflowError:
            count = -1
        if count < 0 or count > self._limit - self._available:
            out = self._limit - self._available
            raise ValueError(f"{n} credits given back to a window of {self._limit} of which {out} are out")
        self._available += count
        if self._queue:
            self._serve()

    def set_limit(self, limit: int) -> None:
        """Change the number of credits. Those in use stay in use; a smaller window fills as they return.

        :raises ValueError: negative, or less than what some task waits for.
        """
        _check_limit(limit)
        most = max((entry.n for entry in self._queue), default=0)
        if limit < most:
            raise ValueError(f"limit={limit}: a task waits for {most} credits")
        self._available += limit - self._limit
        self._limit = limit
        self._serve()

    def _serve(self) -> None:
        while self._queue:
            entry = next(iter(self._queue))
            if entry.n > self._available:
                return
            del self._queue[entry]
            entry.granted = True
            self._take(entry.n)
            entry.waiter.set()

    def close(self, exc: BaseException) -> None:
        """End the window: every waiting task and every later acquisition gets ``exc``. Idempotent: the first
        exception stays. Credits can still be released."""
        if self._exc is not None:
            return
        self._exc = exc
        queue, self._queue = self._queue, OrderedDict()
        for entry in queue:
            entry.waiter.set()

    def statistics(self) -> CreditStatistics:
        """Counters and high-water marks."""
        return CreditStatistics(
            limit=self._limit,
            available=self._available,
            waiting=len(self._queue),
            acquired=self._acquired,
            waits=self._waits,
            cancelled=self._cancelled,
            peak_in_use=self._peak_in_use,
            peak_waiting=self._peak_waiting,
        )
