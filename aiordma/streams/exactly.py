"""Receiving exactly as many bytes as were asked for, in place.

What was taken from the pipe before the operation failed or was cancelled is kept by the stream and received
next: nothing was consumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..errors import IncompleteRead

if TYPE_CHECKING:
    from ..wake.base import Waiter, Waker


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

    def _keep(self, data: memoryview) -> None:
        """Have this received first."""


async def fill(stream: Source, view: memoryview, partial: memoryview | None = None) -> None:
    """Fill ``view``. The caller guards the direction.

    :param partial: what an :class:`~aiordma.errors.IncompleteRead` carries a part of; None: a copy.
    """
    waker = stream._waker
    total = len(view)
    at = 0
    waited = False
    waiter = None
    try:
        await stream._begin()
        while True:
            with view[at:] as rest:
                count = stream._take_into(rest)
            if count > 0:
                at += count
                if at == total:
                    break
                # Polling and copying take time: others may want their turn.
                if waker.share_overdue():
                    await waker.checkpoint()
                continue
            if count == 0:
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
        await stream._end(waited)
    except (IncompleteRead, GeneratorExit):
        raise
    except BaseException:
        stream._keep(view[:at])
        raise
