"""What a transport was given to write and the peer's ring has no room for."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..pipes.contracts import Buffer

GATHER_BYTES = 64 * 1024
"""Writes below this size are gathered in one buffer, and writelines() joins up to it."""


class Backlog:
    """Buffers in order, the first of which may be sent in part."""

    __slots__ = ("_buffers", "_sent", "size")

    def __init__(self) -> None:
        self._buffers: deque[Buffer] = deque()
        #: Bytes of the first buffer that are sent.
        self._sent = 0
        #: Bytes that wait.
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self._buffers)

    def put(self, data: Buffer, start: int) -> None:
        """Keep ``data[start:]``. Only bytes are kept as they are: the caller may change anything else."""
        size = len(data) - start
        buffers = self._buffers
        self.size += size
        if size < GATHER_BYTES:
            last = buffers[-1] if buffers else None
            if type(last) is not bytearray or len(last) >= GATHER_BYTES:
                buffers.append(bytearray(memoryview(data)[start:]))
                return
            try:
                last += memoryview(data)[start:]
            except BufferError:  # the pipe has it: a send has just failed, and what came before is delivered
                buffers.append(bytearray(memoryview(data)[start:]))
        elif type(data) is bytes or (isinstance(data, memoryview) and type(data.obj) is bytes):
            buffers.append(memoryview(data)[start:])
        else:
            buffers.append(bytes(memoryview(data)[start:]))

    def move(self, send: Callable[[Buffer, int], int]) -> None:
        """Give it to ``send(buffer, start)`` as far as that takes it."""
        buffers = self._buffers
        while buffers:
            first = buffers[0]
            n = send(first, self._sent)
            if not buffers:  # cleared meanwhile: a pipe that fails calls its user
                break
            self.size -= n
            self._sent += n
            if self._sent < len(first):
                break
            buffers.popleft()
            self._sent = 0

    def clear(self) -> None:
        """All of it is lost."""
        self._buffers.clear()
        self.size = self._sent = 0


def as_bytes(data: object) -> memoryview:
    """The bytes of anything that has some, as asyncio's writelines() takes them.

    :raises TypeError: it has none.
    """
    view = memoryview(data)  # type: ignore[arg-type]
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
