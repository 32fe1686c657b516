# cython: annotation_typing=False
"""What a stream can send or receive without waiting, as one call.

Most operations of a busy stream find room, or data, at once. Whether they do is decided here, where it is
compiled: in byte code it took a ninth of the instructions of a 64 B round trip. ``stream.py`` has what waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from anyio import BrokenResourceError

from ..wake.turns import Turns

if TYPE_CHECKING:
    from ..pipes.contracts import Pipe
    from ..wake.base import Waker

#: Nothing was placed or taken, and no checkpoint was passed. As false as the other answers that are no data.
NOT_BEGUN: Final = False


class AtOnce:
    """Of one stream, which passes the guard of the direction: None where it may be used.

    On trio every operation is ``NOT_BEGUN``.
    """

    def __init__(self, waker: Waker, pipe: Pipe) -> None:
        # Bound once: on the path of a round trip every hundred nanoseconds count.
        self._turns = waker if isinstance(waker, Turns) else None
        self._try_send = pipe.try_send
        self._poll_receive = pipe.poll_receive

    def send(self, item: Any, guard: int | None) -> int | Literal[False] | None:
        """Place what there is room for. None: that was all; otherwise the number of bytes, or NOT_BEGUN.

        :raises anyio.ClosedResourceError: this side has finished sending
        :raises anyio.BrokenResourceError: the connection is lost
        """
        turns = self._turns
        if turns is None or guard is not None or not (type(item) is bytes or type(item) is bytearray):
            return NOT_BEGUN
        if turns.share <= 0 or turns.is_cancelled():
            return NOT_BEGUN
        size = len(item)
        try:
            placed = self._try_send(item)
        except BrokenResourceError:
            if size:
                raise
            return None  # nothing is nothing to everybody, as on TCP
        turns.share -= 1 + (placed >> 12)
        return None if placed == size else placed

    def receive(self, max_bytes: Any, guard: int | None) -> bytes | Literal[False] | None:
        """Take what is there, or comes while polling. None: nothing; b"": the peer has finished sending.
        Or NOT_BEGUN.

        :raises anyio.ClosedResourceError: this end is closed
        :raises anyio.BrokenResourceError: the connection is lost
        """
        turns = self._turns
        if turns is None or guard is not None or type(max_bytes) is not int or max_bytes < 1:
            return NOT_BEGUN
        if turns.share <= 0 or turns.is_cancelled():
            return NOT_BEGUN
        data: bytes | None = self._poll_receive(max_bytes)
        if data:
            turns.count_polled(len(data) >> 12)  # others of the loop may have run while this polled
        return data


class AtOnceBehind:
    """The same for a reader that keeps bytes of its own, which come before those of the pipe."""

    def __init__(self, waker: Waker, pipe: Pipe) -> None:
        self._turns = waker if isinstance(waker, Turns) else None
        self._spin_readable = pipe.spin_readable
        self._try_receive = pipe.try_receive

    def receive(self, before: bytearray, max_bytes: Any) -> bytes | Literal[False] | None:
        """As ``AtOnce.receive()``.

        :param before: where it keeps them; empty now. What polling dispatches may move bytes there: then
            nothing is taken, NOT_BEGUN.
        :raises anyio.ClosedResourceError: this end is closed
        :raises anyio.BrokenResourceError: the connection is lost
        """
        turns = self._turns
        if turns is None or type(max_bytes) is not int or max_bytes < 1:
            return NOT_BEGUN
        if turns.share <= 0 or turns.is_cancelled():
            return NOT_BEGUN
        found = self._spin_readable()
        if before:
            return NOT_BEGUN
        if not found:
            return None
        data: bytes | None = self._try_receive(max_bytes)
        if data:
            turns.count_polled(len(data) >> 12)
        return data
