"""Stations 1 and 8 of the path of a byte: the stream that users hold.

A stream is a handle over a *pipe* (:class:`~aiordma.pipes.contracts.Pipe`): a ring pipe over RDMA, or a TCP
connection with the same contract. Pipes never wait. Operations that can complete at once do so here; the
others wait in :mod:`aiordma.wake.duplex`, which also explains the order of waiting and the checkpoints.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import anyio.abc
from anyio import EndOfStream, WouldBlock

from ..negotiation.hints import missing_method
from ..wake.duplex import Loan
from ..wake.pipe_end import PipeEnd

if TYPE_CHECKING:
    from ssl import SSLObject

    from ..addresses import Address
    from ..errors import FallbackReason
    from ..pipes.contracts import Buffer, Pipe

__all__ = ["RdmaStream", "RingCredit"]


class RingCredit(NamedTuple):
    """The window of a stream's back-pressure, as it is now (names as in :class:`aiordma.CreditWindow`)."""

    #: bytes that :meth:`RdmaStream.send_nowait` would take now; on TCP 1 stands for "some"
    available: int
    #: size of the peer's ring; 0 where it is not known (TCP)
    limit: int


# A poll_send() that has placed less, and not everything, has polled in vain.
_SEND_STEP = 256 * 1024


class RdmaStream(PipeEnd, anyio.abc.ByteStream):
    """A byte stream over RDMA, or over TCP where RDMA is not available (see :attr:`path`).

    Made by :func:`aiordma.connect` and :class:`aiordma.RdmaListener`. Belongs to the event loop it was made
    in. One task may send while another receives; a second one in the same direction gets
    ``anyio.BusyResourceError``.

    Cancellation: a cancelled :meth:`receive` has consumed nothing. A cancelled :meth:`send` may have sent a
    prefix of its item; the stream stays usable, but only the two ends can know what the prefix means.
    """

    def __init__(
        self,
        pipe: Pipe,
        *,
        local_address: Address,
        remote_address: Address,
        fallback_reason: FallbackReason | None = None,
        tls: SSLObject | None = None,
    ) -> None:
        super().__init__(local_address, remote_address, fallback_reason, tls)
        self._use(pipe)

    def _use(self, pipe: Pipe) -> None:
        self._pipe: Pipe = pipe
        # Bound once: on the path of a round trip every hundred nanoseconds count.
        self._try_send = pipe.try_send
        self._poll_receive = pipe.poll_receive
        self._spin_readable = pipe.spin_readable if pipe.path != "tcp" else _no_polling
        self._poll_send = pipe.poll_send if pipe.path != "tcp" else None

    # -- sending

    if not TYPE_CHECKING:  # type checkers find these mistakes better without it

        def __getattr__(self, name: str) -> NoReturn:
            missing_method(self, name)

    async def send(self, item: Buffer) -> None:
        """Send all bytes of ``item``; returns when they are in the peer's ring or on their way there.

        Waits while the ring is full. Cancelled: a prefix may have been sent.

        :raises anyio.ClosedResourceError: after :meth:`aclose` or :meth:`send_eof`
        :raises anyio.BrokenResourceError: the connection is lost (the cause says why)
        :raises anyio.BusyResourceError: another task is sending
        """
        kind = item.__class__
        if kind is not bytes and kind is not bytearray:
            item = memoryview(item).cast("B")
        waker = self._waker
        if waker.share > 0 and self._send_guard is None and not waker.cancel_requested():
            placed = self._try_send(item)
            waker.share -= 1 + (placed >> 12)
            if placed != len(item):
                await self._send_rest(item, placed, begun=True)
        else:
            await self._send_rest(item, 0, begun=False)

    async def _send_rest(self, item: Buffer, placed: int, *, begun: bool) -> None:
        with memoryview(item) as view:
            await self._send_when_room(_OutgoingBytes(self, view, placed), begun)

    def send_nowait(self, item: Buffer) -> int:
        """Send what the peer's ring has room for, at least one byte; return how many bytes that was.

        Never yields to the event loop.

        :raises anyio.WouldBlock: the ring is full
        """
        if self._send_guard is not None:
            raise self._refusal(self._send_guard, "sending to")
        placed = self._pipe.try_send(item)
        if not placed and len(item):
            raise WouldBlock
        return placed

    # -- receiving

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """At least one and at most ``max_bytes`` bytes, as soon as there are any.

        Cancelled: nothing was consumed.

        :raises anyio.EndOfStream: the peer has finished sending, and everything was received
        :raises anyio.ClosedResourceError: this end is closed
        :raises anyio.BrokenResourceError: the connection is lost (the cause says why)
        :raises anyio.BusyResourceError: another task is receiving
        """
        if max_bytes.__class__ is not int or max_bytes < 1:
            max_bytes = _size(max_bytes)
        waker = self._waker
        if waker.share > 0 and self._receive_guard is None and not waker.cancel_requested():
            data = self._poll_receive(max_bytes)
            if data:
                share = waker.share - 1 - (len(data) >> 12)
                # Polling takes time as well: every few operations the clock is asked.
                waker.share = share if share & 7 or not waker.share_overdue() else 0
                return data
            if data is None:
                data = await self._receive_when_there(lambda: self._pipe.try_receive(max_bytes), True)
        else:
            data = await self._receive_when_there(lambda: self._pipe.try_receive(max_bytes), False)
        if not data:
            raise EndOfStream("the peer has finished sending, and everything was received")
        return data

    async def receive_into(self, buffer: bytearray | memoryview) -> int:
        """Receive into ``buffer`` (at least one byte, at most its size); return the number of bytes.

        Errors and cancellation as in :meth:`receive`.
        """
        if not len(buffer):
            raise ValueError("the buffer must have room for at least 1 byte")

        def take() -> int | None:
            count = self._pipe.try_receive_into(buffer)
            return None if count < 0 else count

        waker = self._waker
        if waker.share > 0 and self._receive_guard is None and not waker.cancel_requested():
            count = self._pipe.try_receive_into(buffer)
            if count > 0:
                waker.share -= 1 + (count >> 12)
                return count
            if count < 0:
                count = await self._receive_when_there(take, True)
        else:
            count = await self._receive_when_there(take, False)
        if not count:
            raise EndOfStream("the peer has finished sending, and everything was received")
        return count

    def receive_nowait(self, max_bytes: int = 65536) -> bytes:
        """What is there now. Never yields to the event loop.

        :raises anyio.WouldBlock: nothing is there
        :raises anyio.EndOfStream: as in :meth:`receive`, like the other errors
        """
        if self._receive_guard is not None:
            raise self._refusal(self._receive_guard, "receiving from")
        if max_bytes.__class__ is not int or max_bytes < 1:
            max_bytes = _size(max_bytes)
        data = self._pipe.try_receive(max_bytes)
        if data is None and self._pipe.spin_readable():
            data = self._pipe.try_receive(max_bytes)
        if data is None:
            raise WouldBlock
        if not data:
            raise EndOfStream("the peer has finished sending, and everything was received")
        return data

    async def borrow(self, max_bytes: int | None = None) -> Loan:
        """Lend the received bytes without copying them: ``with await stream.borrow() as view: ...``.

        ``view`` is a read-only memoryview of at least one byte (at most ``max_bytes``), valid inside the
        ``with`` block only; the bytes count as received when the block is left. Meanwhile the peer's credit
        is held back, so keep it short: a full ring stops the sender. Errors as in :meth:`receive`.
        """
        if max_bytes is not None:
            max_bytes = _size(max_bytes)

        def look() -> memoryview | None:
            view = self._pipe.view()
            return view if len(view) or self._pipe.at_eof else None

        view = await self._receive_when_there(look, False)
        if not len(view):
            raise EndOfStream("the peer has finished sending, and everything was received")
        if max_bytes is not None:
            view = view[:max_bytes]
        return Loan(self, view, lambda: self._pipe.consume(len(view)))

    # -- what it is

    @property
    def credit(self) -> RingCredit:
        """The window of this stream's back-pressure: how much the peer's ring still takes.

        :meth:`send` waits on it by itself; look here to choose what to send, or whether.
        """
        pipe = self._pipe
        return RingCredit(pipe.writable, getattr(pipe.statistics(), "peer_ring_bytes", 0))

    def statistics(self) -> Any:
        """Counters of this stream: a ``NamedTuple``, which one depends on the path."""
        return self._pipe.statistics()


class _OutgoingBytes:
    """An item of which ``placed`` bytes are in the peer's ring, or at least accepted."""

    __slots__ = ("_placed", "_stream", "_total", "_view")

    def __init__(self, stream: RdmaStream, view: memoryview, placed: int) -> None:
        self._stream = stream
        self._view = view
        self._placed = placed
        self._total = len(view)

    def place(self) -> bool:
        self._placed += self._stream._pipe.try_send(self._view, self._placed)
        return self._placed == self._total

    def poll(self) -> bool | None:
        poll_send = self._stream._poll_send
        if poll_send is None:
            return None
        step = poll_send(self._view, self._placed)
        self._placed += step
        if self._placed == self._total:
            return True
        return False if step >= _SEND_STEP else None


def _no_polling() -> bool:
    return False


def _size(max_bytes: object) -> int:
    size = operator.index(max_bytes)  # type: ignore[arg-type]  # TypeError for a float
    if size < 1:
        raise ValueError(f"max_bytes must be at least 1, not {size}")
    return size
