"""Bytes that were accepted and wait for room: ``send_soon()`` puts them in, ``flush()`` waits for them.

The pipe calls when there is room, and what fits goes out in that callback. So nothing waits for a task, and a
flush that is cancelled has lost nothing. Large buffers are kept by reference, small ones are joined.

The callback may come in the middle of a send that polls for room, before the outbox knows what that has
placed. It then leaves the bytes to that send: they were sent by both, twice and in the wrong order.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from anyio import BrokenResourceError, ClosedResourceError, WouldBlock

from ..plain import check_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from typing_extensions import Buffer

    from .base import Waiter

__all__ = ["OUTBOX_BYTES", "Outbox"]

OUTBOX_BYTES = 64 * 1024 * 1024
"""While so many bytes wait, no more are accepted."""

#: Buffers of up to so many bytes are copied and go out together, up to a total of the second number.
_SMALL_BYTES, _JOINED_BYTES = 4096, 65536


class BytePipe(Protocol):
    """What is needed of a pipe."""

    on_writable: Callable[[], None] | None

    def try_send(self, data: Any, start: int = 0, /) -> int: ...
    def send_eof(self) -> None: ...


class Outbox:
    """:param pipe: its ``on_writable`` belongs to this object from now on."""

    __slots__ = (
        "_again",
        "_head",
        "_parts",
        "_pipe",
        "_pushing",
        "_waiters",
        "error",
        "nbytes",
        "on_room",
        "then_eof",
    )

    def __init__(self, pipe: BytePipe, on_room: Callable[[], None] | None) -> None:
        self._pipe = pipe
        self._parts: deque[memoryview | bytes] = deque()
        self._head = 0  # bytes of the first part that are gone
        self._waiters: list[Waiter] = []
        self._pushing = self._again = False  # a push is at work; the pipe has called meanwhile
        #: bytes that wait
        self.nbytes = 0
        #: why those that waited were lost
        self.error: Exception | None = None
        #: called when there is room and nothing waits here
        self.on_room = on_room
        #: the end of the stream follows what waits
        self.then_eof = False
        self.watch()

    def watch(self) -> None:
        """Have the pipe call when there is room."""
        self._pipe.on_writable = self._on_writable

    def add(self, buffers: Buffer | Iterable[Buffer], limit: int) -> None:
        """Accept all of them, or none.

        :raises WouldBlock: ``limit`` bytes wait already.
        :raises BufferError: one is not contiguous. :raises TypeError: one is no buffer.
        """
        try:
            given: Any = [memoryview(buffers)]  # type: ignore[arg-type]
        except TypeError:
            given = buffers
        parts = _parts(given)
        if self.nbytes >= limit and parts:
            raise WouldBlock(
                f"{self.nbytes} bytes of send_soon() wait for room, the limit is {limit}: await flush() first"
            )
        self.nbytes += sum(map(len, parts))
        self._parts += parts

    @property
    def unsent(self) -> int:
        """Bytes that were accepted and wait for room."""
        return self.nbytes

    def push(self) -> bool:
        """Give the pipe what it takes now; whether nothing waits any more."""
        return not self.nbytes or self.push_by(self._pipe.try_send)

    def push_by(self, send: Callable[..., int]) -> bool:
        """The same by another method of the pipe."""
        if self._pushing:
            self._again = True
            return False
        self._pushing = True
        try:
            done = self._move(send)
            while self._again:
                self._again = False
                done = done or self._move(self._pipe.try_send)
                if done and self.on_room is not None:
                    self.on_room()
        finally:
            self._pushing = self._again = False
        return done

    def _move(self, send: Callable[..., int]) -> bool:
        parts = self._parts
        try:
            while parts:
                head = parts[0]
                placed = send(head, self._head)
                if not parts:  # dropped meanwhile
                    return True
                self._head += placed
                self.nbytes -= placed
                if self._head < len(head):
                    return False
                parts.popleft()
                self._head = 0
        except (BrokenResourceError, ClosedResourceError) as exc:
            self.drop(exc)
            return True
        self._all_sent()
        return True

    def _all_sent(self) -> None:
        if self.then_eof:
            self.then_eof = False
            self._pipe.send_eof()
        self._wake()

    def drop(self, error: Exception) -> None:
        """What waits is lost."""
        self._parts.clear()
        self._head = self.nbytes = 0
        self.error = error
        self._wake()

    def check(self) -> None:
        """:raises BrokenResourceError: something was lost, because the connection is."""
        if self.error is not None:
            raise BrokenResourceError(f"what was to be sent is lost: {self.error}") from self.error

    async def wait(self, waiter: Waiter) -> None:
        """Until nothing waits. The caller has seen :meth:`push` come short, and may have polled since then:
        what polling called may have sent everything, and nothing would end this any more."""
        if not self.nbytes:
            return
        self._waiters.append(waiter)
        try:
            await waiter.wait()
        finally:
            self._waiters.remove(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            waiter.set()

    def _on_writable(self) -> None:
        if self.push() and self.on_room is not None:
            self.on_room()


def _parts(buffers: Iterable[Buffer]) -> list[memoryview | bytes]:
    parts: list[memoryview | bytes] = []
    small: list[memoryview] = []
    together = 0
    for buffer in buffers:
        view = memoryview(buffer)
        check_plain(view)
        if not view.c_contiguous:
            raise BufferError("what is sent must be contiguous")
        if view.nbytes > _SMALL_BYTES or together + view.nbytes > _JOINED_BYTES:
            if small:
                parts.append(b"".join(small))
                small, together = [], 0
        if view.nbytes > _SMALL_BYTES:
            parts.append(view.cast("B"))
        elif view.nbytes:
            small.append(view)
            together += view.nbytes
    if small:
        parts.append(b"".join(small))
    return parts
