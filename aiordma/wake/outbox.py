"""Bytes that were accepted and wait for room: ``send_soon()`` puts them in, ``flush()`` waits for them.

The pipe calls when there is room, and what fits goes out in that callback. So nothing waits for a task, and a
flush that is cancelled has lost nothing. Large buffers are kept by reference, small ones are joined.

The callback may come in the middle of a send that polls for room, before the outbox knows what that has
placed. It then leaves the bytes to that send: they were sent by both, twice and in the wrong order.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from anyio import BrokenResourceError, ClosedResourceError, WouldBlock

from ..plain import check_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from typing_extensions import Buffer

    from .base import Waiter

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
        if type(buffers) is bytes:  # most are
            if buffers:
                self._check_limit(limit)
                self.nbytes += len(buffers)
                self._parts.append(buffers)
            return
        parts: list[memoryview | bytes] = []
        with released_on_error(parts):
            _take_parts(buffers_of(buffers), parts)
            if parts:
                self._check_limit(limit)
        self.nbytes += sum(map(len, parts))
        self._parts += parts

    def _check_limit(self, limit: int) -> None:
        if self.nbytes >= limit:
            raise WouldBlock(
                f"{self.nbytes} bytes of send_soon() wait for room, the limit is {limit}: await flush() first"
            )

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
        release(self._parts)  # the error's traceback may hold one of them
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


def buffers_of(given: Buffer | Iterable[Buffer]) -> Iterable[Buffer]:
    """One buffer, or several."""
    if isinstance(given, bytes):
        return (given,)
    try:
        with memoryview(given):  # type: ignore[arg-type]
            return (given,)  # type: ignore[return-value]
    except TypeError:
        return given  # type: ignore[return-value]


class released_on_error:
    """An error's traceback may be kept for long: views of the user's buffers must not be."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Iterable[Any]) -> None:
        self._parts = parts

    def __enter__(self) -> None:
        """Nothing to be done."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            release(self._parts)


def release(parts: Iterable[Any]) -> None:
    """Release the views among them, each of which was made here."""
    for part in parts:
        if type(part) is tuple:
            release(part)
        elif type(part) is memoryview:
            with contextlib.suppress(BufferError):  # a send that is at work with it has it, and lets go
                part.release()


def _take_parts(buffers: Iterable[Buffer], parts: list[memoryview | bytes]) -> None:
    small: list[bytes] = []
    together = 0
    for buffer in buffers:
        piece = _piece(buffer)
        size = len(piece)
        if small and (size > _SMALL_BYTES or together + size > _JOINED_BYTES):
            parts.append(b"".join(small))
            small, together = [], 0
        if size > _SMALL_BYTES:
            parts.append(piece)
        elif size:
            small.append(piece)  # type: ignore[arg-type]  # it was copied
            together += size
    if small:
        parts.append(b"".join(small))


def _piece(buffer: Buffer) -> memoryview | bytes:
    """Bytes, or a view of many."""
    if isinstance(buffer, bytes):
        return buffer
    with memoryview(buffer) as view:
        check_plain(view)
        if not view.c_contiguous:
            raise BufferError("what is sent must be contiguous")
        return view.cast("B") if view.nbytes > _SMALL_BYTES else view.tobytes()
