"""Operations under way, as their users hold them, and the contract of what carries them to a peer."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from anyio import BrokenResourceError

from .. import wake
from ..wake.interrupts import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Generator

    from ..verbs._spans import Spans
    from ..wake.base import Waiter
    from .local import Memory

T = TypeVar("T")
logger = logging.getLogger("aiordma.memory")


@uninterrupted
class Operation(Generic[T]):
    """A READ, WRITE or atomic operation that was started: ``await`` it, any number of times, for its result.

    Made by the ``start_`` methods of remote memory. Its memory must not be used before it has ended. When a
    task that awaits it is cancelled, it is given up.
    """

    #: Whether it has ended, and the result can be had without waiting.
    done = False
    _error: BaseException | None = None
    _result: T
    _waiters: tuple[Waiter, ...] = ()
    _seen = False

    def __await__(self) -> Generator[object, object, T]:
        return self.wait().__await__()

    async def wait(self) -> T:
        """Wait for its end; the same as ``await`` on the operation itself.

        :raises MemoryAccessError: it was refused. :raises anyio.BrokenResourceError: the peer is lost, or
            the operation was given up. :raises anyio.ClosedResourceError: the connection was closed.
        """
        waker = wake.current()
        if not waker.may_begin():
            try:
                await waker.begin()
            except BaseException:
                self.cancel()
                raise
        waker.count(0)
        while not self.done and not self._look():
            waiter = waker.new_waiter()
            self._waiters = (*self._waiters, waiter)
            try:
                await waiter.wait()
            except BaseException:
                self.cancel()
                raise
        return self.result()

    def result(self) -> T:
        """Its result. It has ended.

        :raises BaseException: as :meth:`wait`. :raises RuntimeError: it has not ended.
        """
        if not self.done:
            raise RuntimeError("this operation has not ended: await it")
        if self._error is not None:
            self._seen = True
            raise self._error.with_traceback(None)
        return self._result

    def cancel(self) -> None:
        """Give it up: what has not begun does not begin, and nothing is read into ordinary buffers any more.
        What a device has begun goes on, in the background. Idempotent."""
        raise NotImplementedError

    def _look(self) -> bool:
        """Whether a look at the device ends it now. If not, its end is certain to wake the waiters."""
        return False

    def _end(self, result: T, error: BaseException | None = None) -> None:
        """It has ended. No device and no message uses its memory any more."""
        self.done, self._result, self._error = True, result, error
        waiters, self._waiters = self._waiters, ()
        for waiter in waiters:
            waiter.set()

    def __del__(self) -> None:
        if self._error is not None and not self._seen and logger is not None:
            logger.warning("an operation that was started and never awaited has failed: %s", self._error)

    def __repr__(self) -> str:
        state = "under way" if not self.done else "failed" if self._error is not None else "done"
        return f"<{type(self).__name__.lstrip('_')}, {state}>"


def given_up() -> BrokenResourceError:
    """What others find who wait for an operation that was cancelled."""
    return BrokenResourceError("this operation was given up")


async def gather(*operations: Operation[T]) -> list[T]:
    """The results of operations that were started, in order. Returns, or raises, when all have ended.

    When cancelled, all of them are given up.

    :raises BaseException: what the first of them that failed, in the order given, has raised.
    """
    first: Exception | None = None
    results: list[T] = []
    try:
        for operation in operations:
            try:
                results.append(await operation)
            except Exception as error:
                first = first if first is not None else error
    except BaseException:
        for operation in operations:
            operation.cancel()
        raise
    if first is not None:
        raise first
    return results


class Remote(Protocol):
    """What a peer's descriptor was opened as."""

    number: int
    address: int
    rkey: int
    length: int
    #: Requests that use it.
    users: int
    #: Whether it may be used now; if not, :meth:`check_open` says why.
    live: bool

    def check_open(self) -> None:
        """:raises MemoryAccessError: it was taken back. :raises anyio.ClosedResourceError: it was closed.
        :raises anyio.BrokenResourceError: the connection is over.
        """

    def end_use(self) -> None:
        """One of the :attr:`users` is no more."""

    def settle(self) -> None:
        """There are no :attr:`users` any more, and it is not :attr:`live`."""


class OperationPath(Protocol):
    """What carries operations to a peer: a link, or messages to the peer's loop."""

    path: str

    def start(
        self, op: int, remote: Remote, start: int, nbytes: int, local: Memory
    ) -> Operation[None] | None:
        """READ or WRITE ``nbytes`` at ``start``. None: it is done already.

        :raises ValueError: ``local`` has another length. :raises BufferError: it is read-only.
        """

    def start_pieces(self, op: int, remote: Remote, places: Spans, local: Memory) -> Operation[None]:
        """The same for many pieces, whose offsets in ``remote`` are ``places``."""

    def start_atomic(self, op: int, remote: Remote, offset: int, value: int, compare: int) -> Operation[int]:
        """An atomic operation, where the peer has said that its device carries them out."""

    def close(self) -> None:
        """Begin nothing more."""
