"""Receiving exactly as many bytes as were asked for, in place.

Large pieces are placed by the peer, where it can (:mod:`aiordma.links.placed_buffer`); the others, and the
beginning of those, are read from the ring.

What was taken from the pipe before the operation failed or was cancelled is kept by the stream and received
next: nothing was consumed.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

import anyio

from ..errors import IncompleteRead

if TYPE_CHECKING:
    from ..pipes.contracts import PlacedBuffer
    from ..wake.base import Waiter, Waker

__all__ = ["buffer_of", "fill"]

#: Fewer bytes are not placed by the peer, whatever the setting (``Config.place_bytes``).
_LEAST_BYTES = 65536
#: When a peer that was asked to let go of the buffer is silent for so long, the link is broken. It may be
#: busy with something else, but a task that was cancelled waits for it.
_GRACE_S = 5.0


def buffer_of(size: int) -> tuple[bytes | bytearray, memoryview]:
    """A new object to be filled, and the view to fill it through."""
    try:
        from ..datapath._fill import unfilled  # compiled: a large result needs no zeros first
    except ImportError:
        whole = bytearray(size)
        return whole, memoryview(whole)
    return unfilled(size)


class Source(Protocol):
    """What is needed of a stream (see :class:`~aiordma.wake.duplex.Duplex`)."""

    _waker: Waker

    async def _begin(self) -> None: ...
    async def _end(self, waited: bool) -> None: ...
    def _spin_readable(self) -> bool: ...
    def _readable_waiter(self) -> Waiter: ...
    def _take_into(self, buffer: memoryview) -> int:
        """The number of bytes; -1: nothing is there now, 0: the peer has finished sending."""

    def _place(self, buffer: memoryview) -> PlacedBuffer | None:
        """Have the peer write what comes next straight into ``buffer``; None: not now, or never."""

    def _keep(self, data: memoryview) -> None:
        """Have this received first."""


class _Progress:
    """How much of a buffer is filled, whether by this end or straight by the peer."""

    def __init__(self, stream: Source, view: memoryview) -> None:
        self.at = 0
        self._stream, self._view = stream, view
        self._placement: PlacedBuffer | None = None
        self._placed_from = 0
        #: When so much is here, ask for a placement: sooner or later it may be possible, and asking costs.
        self._ask_at = 0

    def take(self) -> int:
        """As :meth:`Source._take_into`; 1 also when the peer has filled the buffer."""
        placement = self._placement
        if placement is not None:
            over = placement.look()
            self.at = self._placed_from + placement.filled
            if over:
                self._placement = placement = None
            if self.at == len(self._view):
                return 1
        with self._view[self.at :] as rest:
            count = self._stream._take_into(rest)
        if count > 0:
            self.at += count
        if count and placement is None and self.at >= self._ask_at:
            self._ask()
        return count

    def _ask(self) -> None:
        if len(self._view) - self.at >= _LEAST_BYTES:
            self._placement = self._stream._place(self._view[self.at :])
            self._placed_from = self.at
        self._ask_at = 2 * self.at + _LEAST_BYTES

    async def settle(self) -> None:
        """Wait until nothing is written into the buffer any more: until then, what was received is not known.

        Cancellation does not end the wait: it is mostly why this is called.
        """
        placement = self._placement
        if placement is None:
            return
        waiter = self._stream._readable_waiter()
        placement.on_over = waiter.set
        placement.recall(_GRACE_S)
        with anyio.CancelScope(shield=True):
            while not placement.look():
                # asyncio's own cancel() goes through the shield. The first one is being reported already.
                with contextlib.suppress(anyio.get_cancelled_exc_class()):
                    await waiter.wait()
        self._placement = None
        self.at = self._placed_from + placement.filled


async def fill(stream: Source, view: memoryview, partial: memoryview | None = None) -> None:
    """Fill ``view``. The caller guards the direction.

    :param partial: what an :class:`~aiordma.errors.IncompleteRead` carries a part of; None: a copy.
    """
    waker = stream._waker
    total = len(view)
    progress = _Progress(stream, view)
    waited = False
    waiter = None
    try:
        await stream._begin()
        while True:
            count = progress.take()
            if count > 0:
                if progress.at == total:
                    break
                # Polling and copying take time: others may want their turn.
                if waker.share_overdue():
                    await waker.checkpoint()
                continue
            if count == 0:
                await progress.settle()
                at = progress.at
                raise IncompleteRead(bytes(view[:at]) if partial is None else partial[:at], total)
            if stream._spin_readable():
                if waker.share_overdue():
                    await waker.checkpoint()
                continue
            if waiter is None:
                waiter = stream._readable_waiter()
                continue  # what came before it was there is not announced
            await waiter.wait()
            waited = True
            waker.renew_share()
        await progress.settle()
        await stream._end(waited)
    except (IncompleteRead, GeneratorExit):
        raise
    except BaseException:
        await progress.settle()
        stream._keep(view[: progress.at])
        raise
