"""What a stream on TCP has read ahead of its user: limited for each, and for all of a loop together.

The limits count bytes of the stream. A peer decides in which pieces they come, and each piece that is kept
costs a few hundred bytes more, and keeps the memory into which it was read. So tiny pieces are joined, and
what is a small part of what was read with it is copied: memory stays within a few times what is counted.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...wake.base import Waker

#: Bytes read ahead of the user, about.
_AHEAD_BYTES = 256 * 1024
#: The same while something that is awaited comes behind the peer's data: a message of an attempt to return
#: to RDMA, or what frees the rings on which this end sends, when they have failed. A peer that reads answers
#: before it has sent much more than is in the kernels' buffers.
_MOST_AHEAD_BYTES = 64 * 1024 * 1024
#: All streams of a loop together, beyond the first limit of each.
_SUM_AHEAD_BYTES = 256 * 1024 * 1024
#: A piece that is shorter than this is joined to another one. Longer ones are kept as they were read.
_TINY_BYTES = 1024


class _Sum:
    """Bytes read ahead of the users of all streams of a loop, and who does not read for their sake."""

    def __init__(self) -> None:
        self.bytes = 0
        self.waiting: set[Ahead] = set()

    @classmethod
    def of(cls, waker: Waker) -> _Sum:
        found: _Sum | None = waker.locals.get(cls)
        if found is None:
            found = waker.locals[cls] = cls()
        return found

    def take(self, n: int) -> None:
        """``n`` bytes less. Those that waited for it read on."""
        self.bytes -= n
        if self.waiting and self.bytes < _SUM_AHEAD_BYTES:
            waiting, self.waiting = self.waiting, set()
            for one in waiting:
                one.read_soon()


class Ahead:
    """Of one stream.

    :param read_soon: called when there may be room again.
    """

    __slots__ = ("_most", "_pieces", "_sum", "bytes", "read_soon")

    def __init__(self, waker: Waker, read_soon: Callable[[], None]) -> None:
        self.bytes = 0
        self.read_soon = read_soon
        self._pieces: deque[memoryview] = deque()
        self._sum = _Sum.of(waker)
        self._most = _AHEAD_BYTES

    @property
    def full(self) -> bool:
        """Whether what comes has to wait in the kernel."""
        ahead = self.bytes
        return ahead >= self._most or (ahead >= _AHEAD_BYTES and self._sum.bytes >= _SUM_AHEAD_BYTES)

    def stretch(self, wide: bool) -> None:
        """Whether much more may be read than the user needs."""
        self._most = _MOST_AHEAD_BYTES if wide else _AHEAD_BYTES

    def wait(self) -> None:
        """It is full, and does not read. If that is for the sake of others, it reads on when they have."""
        if self.bytes < self._most:
            self._sum.waiting.add(self)

    def add(self, parts: list[memoryview], read_bytes: int) -> None:
        """Keep these parts of the ``read_bytes`` that were read at once."""
        size = sum(map(len, parts))
        if 2 * size < read_bytes or size < _TINY_BYTES * len(parts):
            parts = [memoryview(b"".join(parts))] if size else []
        pieces = self._pieces
        for part in parts:
            if pieces and len(part) < _TINY_BYTES and len(pieces[-1]) < _TINY_BYTES:
                pieces[-1] = memoryview(b"".join((pieces[-1], part)))
            else:
                pieces.append(part)
        self.bytes += size
        self._sum.bytes += size

    @property
    def front(self) -> memoryview:
        """The next bytes that are in one piece; may be empty."""
        return self._pieces[0] if self._pieces else memoryview(b"")

    def take(self, n: int) -> None:
        """The first ``n`` bytes of :attr:`front` are taken."""
        was_full = self.full
        self.bytes -= n
        self._sum.take(n)
        if was_full and not self.full:
            self.read_soon()
        front = self._pieces[0]
        if n == len(front):
            self._pieces.popleft()
        else:
            self._pieces[0] = front[n:]

    def drop(self) -> None:
        """Nothing of it will be taken."""
        self._pieces.clear()
        self._sum.waiting.discard(self)
        self._sum.take(self.bytes)
        self.bytes = 0
