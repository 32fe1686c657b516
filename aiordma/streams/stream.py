"""Stations 1 and 8 of the path of a byte: the stream that users hold.

A stream is a handle over a *pipe* (:class:`~aiordma.pipes.contracts.Pipe`): a ring pipe over RDMA, or a TCP
connection with the same contract. Pipes never wait. Operations that can complete at once do so here; the
others wait in :mod:`aiordma.wake.duplex`, which also explains the order of waiting and the checkpoints.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio.abc
from anyio import BrokenResourceError, EndOfStream, WouldBlock

from ..negotiation.hints import hint_at_methods
from ..plain import check_plain
from ..wake.duplex import CLOSED, KEPT, LOOP_ENDED, Loan
from ..wake.interrupts import uninterrupted
from ..wake.outbox import Outbox
from ..wake.send_soon import SendsSoon
from .at_once import NOT_BEGUN, AtOnce
from .exactly import buffer_of, fill
from .outgoing import Behind, OutgoingBytes, poll_outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from ssl import SSLObject

    from typing_extensions import Buffer as AnyBuffer

    from ..addresses import Address
    from ..errors import FallbackReason
    from ..pipes.contracts import Buffer, Pipe


class RingCredit(NamedTuple):
    """The window of a stream's back-pressure, as it is now (names as in :class:`aiordma.CreditWindow`)."""

    #: bytes that :meth:`RdmaStream.send_nowait` would take now; on TCP 1 stands for "some"
    available: int
    #: size of the peer's ring; 0 where it is not known (TCP)
    limit: int


#: receive_exactly() of more than that fills the result in place.
_SMALL_BYTES = 32768


@hint_at_methods
@uninterrupted
class RdmaStream(SendsSoon, anyio.abc.ByteStream):
    """A byte stream over RDMA, or over TCP where RDMA is not available (see :attr:`path`).

    Made by :func:`aiordma.connect` and :class:`aiordma.RdmaListener`. Belongs to the event loop it was made
    in. One task may send while another receives; a second one in the same direction gets
    ``anyio.BusyResourceError``.

    Cancellation: a cancelled :meth:`receive` has consumed nothing. A cancelled :meth:`send` may have sent a
    prefix of its item; the stream stays usable, but only the two ends can know what the prefix means.
    """

    #: What the peer says of itself, where it is another implementation of SMC-R: Linux' own. None: it is
    #: aiordma, or a plain one.
    smc_peer: str | None = None

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
        at_once = AtOnce(self._waker, pipe)
        # Bound once: on the path of a round trip every hundred nanoseconds count.
        self._send_at_once = at_once.send
        self._receive_at_once = at_once.receive
        self._spin_readable = pipe.spin_readable if pipe.path != "tcp" else _no_polling

    # -- sending

    async def send(self, item: Buffer) -> None:
        """Send all bytes of ``item``; returns when they are in the peer's ring or on their way there.

        Waits while the ring is full. Cancelled: a prefix may have been sent.

        :raises anyio.ClosedResourceError: after :meth:`aclose` or :meth:`send_eof`
        :raises anyio.BrokenResourceError: the connection is lost (the cause says why)
        :raises anyio.BusyResourceError: another task is sending
        """
        placed = self._send_at_once(item, self._send_guard)
        if placed is None:
            return
        if placed is not NOT_BEGUN:
            await self._send_rest(item, placed, begun=True)
        elif item.__class__ is not bytes and item.__class__ is not bytearray:
            await self._send_view(item)
        elif len(item) or self._send_guard is not None:
            await self._send_rest(item, 0, begun=False)
        else:
            await self._waker.checkpoint()

    async def _send_view(self, item: Buffer) -> None:
        """The same for what has other items than bytes, perhaps, or is somebody else's view."""
        check_plain(item)
        waker, placed, begun = self._waker, 0, False
        with memoryview(item) as given, given.cast("B") as view:
            if self._send_guard is None and waker.may_begin():
                try:
                    placed = self._pipe.try_send(view)
                except BrokenResourceError:
                    if len(view):
                        raise
                begun = True
                waker.count(placed >> 12)
            if placed != len(view) or self._send_guard is not None:
                await self._send_rest(view, placed, begun=begun)
            elif not begun:
                await waker.checkpoint()

    async def _send_rest(self, item: Buffer, placed: int, *, begun: bool) -> None:
        outbox = self._outbox
        with memoryview(item) as view:
            rest = OutgoingBytes(self._pipe, view, placed)
            if outbox is None:
                await self._send_when_room(rest, begun)
                return
            try:
                await self._send_when_room(Behind(outbox, self._pipe, rest), begun)
            finally:
                self._settle(outbox)

    def send_nowait(self, item: Buffer) -> int:
        """Send what the peer's ring has room for, at least one byte; return how many bytes that was.

        Never yields to the event loop.

        :raises anyio.WouldBlock: the ring is full, or what :meth:`send_soon` accepted waits for room
        """
        if self._send_guard is not None and not self._send_now_behind():
            raise WouldBlock
        check_plain(item)
        placed = self._pipe.try_send(item)
        if not placed and len(item):
            self._pipe.look()
            placed = self._pipe.try_send(item)
            if not placed:
                raise WouldBlock
        return placed

    # -- sending without waiting

    def send_soon(self, buffers: AnyBuffer | Iterable[AnyBuffer]) -> None:
        """Send all bytes of ``buffers``, one after the other, without waiting: what finds no room now goes
        out by itself when there is some. In order, also with :meth:`send` and :meth:`send_eof`, which follow.

        Large buffers are not copied: leave them as they are until :meth:`flush` returns. Never yields to the
        event loop, so any of its callbacks may call it. It accepts everything or, when it raises, nothing.

        :raises anyio.WouldBlock: :attr:`send_soon_limit` bytes or more wait already. (The length of one call
            is not limited.)
        :raises anyio.BusyResourceError: a task is in :meth:`send`
        :raises anyio.ClosedResourceError: after :meth:`aclose` or :meth:`send_eof`
        :raises anyio.BrokenResourceError: the connection is lost; perhaps with bytes accepted before
        """
        self._accept(buffers)

    def _new_outbox(self, on_room: Callable[[], None] | None) -> Outbox:
        return Outbox(self._pipe, on_room)

    def _poll_outbox(self, outbox: Outbox) -> bool:
        return poll_outbox(outbox, self._pipe)

    def _receive_something(self) -> object:
        return self._pipe.try_receive(65536)

    # -- receiving

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """At least one and at most ``max_bytes`` bytes, as soon as there are any.

        Cancelled: nothing was consumed.

        :raises anyio.EndOfStream: the peer has finished sending, and everything was received
        :raises anyio.ClosedResourceError: this end is closed
        :raises anyio.BrokenResourceError: the connection is lost (the cause says why)
        :raises anyio.BusyResourceError: another task is receiving
        """
        data = self._receive_at_once(max_bytes, self._receive_guard)
        if data:
            return data
        if data is None:
            data = await self._receive_when_there(partial(self._pipe.try_receive, max_bytes), True)
        elif data is NOT_BEGUN:
            take = self._take if self._kept else self._pipe.try_receive
            data = await self._receive_when_there(partial(take, _size(max_bytes)), False)
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
            count = self._take_into(buffer)
            return None if count < 0 else count

        waker = self._waker
        if self._receive_guard is None and waker.may_begin():
            count = self._pipe.try_receive_into(buffer)
            if count > 0:
                waker.count(count >> 12)
                return count
            if count < 0:
                count = await self._receive_when_there(take, True)
        else:
            count = await self._receive_when_there(take, False)
        if not count:
            raise EndOfStream("the peer has finished sending, and everything was received")
        return count

    def receive_nowait(self, max_bytes: int = 65536) -> bytes:
        """What is there now, also what came while the event loop had no turn. Never yields to the event loop.

        :raises anyio.WouldBlock: nothing is there
        :raises anyio.EndOfStream: as in :meth:`receive`, like the other errors
        """
        if self._receive_guard is not None and self._receive_guard is not KEPT:
            raise self._refusal(self._receive_guard, "receiving from")
        if max_bytes.__class__ is not int or max_bytes < 1:
            max_bytes = _size(max_bytes)
        data = self._take(max_bytes)
        if data is None:
            self._pipe.look()
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
            view = memoryview(self._kept) if self._kept else self._pipe.view()
            return view if len(view) or self._pipe.at_eof else None

        view = await self._receive_when_there(look, False)
        if not len(view):
            raise EndOfStream("the peer has finished sending, and everything was received")
        if max_bytes is not None:
            view = view[:max_bytes]
        return Loan(self, view, lambda: self._consume(len(view)))

    async def receive_exactly(self, nbytes: int) -> bytes:
        """Exactly ``nbytes`` bytes, as soon as they are there.

        Cancelled, or failed otherwise than by :class:`IncompleteRead`: nothing was consumed; what has arrived
        is received next.

        :raises aiordma.IncompleteRead: the peer finished before. ``partial`` is what came, and was consumed.
        :raises ValueError: ``nbytes`` is negative; other errors as in :meth:`receive`
        """
        if nbytes < 1:
            if nbytes < 0:
                raise ValueError(f"nbytes must not be negative, but is {nbytes}")
            await self._waker.checkpoint()
            return b""
        if nbytes <= _SMALL_BYTES:
            data = self._receive_at_once(nbytes, self._receive_guard)
            if data and len(data) == nbytes:
                return data
            if data:
                self._keep(data)
                self._receive_guard = KEPT
        whole, view = buffer_of(nbytes)
        await self._receive_all(view, None)
        return whole if isinstance(whole, bytes) else bytes(whole)

    async def receive_exactly_into(self, buffer: AnyBuffer) -> None:
        """Fill all of ``buffer``, which must be writable and contiguous. As :meth:`receive_exactly`.

        Do not use the buffer before this returns. Afterwards only the bytes that it received are in it; when
        it was cancelled, what the buffer holds is undefined.
        """
        with memoryview(buffer) as given:
            if given.readonly or not given.c_contiguous:
                raise BufferError("what is received into must be writable and contiguous")
            if not given.nbytes:
                await self._waker.checkpoint()
                return
            check_plain(given)
            with given.cast("B") as view, given.cast("B") as partial:
                await self._receive_all(view, partial)

    async def _receive_all(self, view: memoryview, partial: memoryview | None) -> None:
        self._begin_receiving()
        try:
            await fill(self, view, partial)
        finally:
            self._end_receiving()

    # -- what was taken from the pipe and not received comes first

    def _take(self, max_bytes: int) -> bytes | None:
        kept = self._kept
        if not kept:
            return self._pipe.try_receive(max_bytes)
        self._check_open()
        self._kept = kept[max_bytes:]
        if self._receive_guard is KEPT and not self._kept:
            self._receive_guard = None
        return bytes(kept[:max_bytes])

    def _take_into(self, buffer: bytearray | memoryview) -> int:
        kept = self._kept
        if not kept:
            return self._pipe.try_receive_into(buffer)
        self._check_open()
        check_plain(buffer)
        with memoryview(buffer) as given, given.cast("B") as view:
            count = min(len(view), len(kept))
            view[:count] = kept[:count]
        self._kept = kept[count:]
        return count

    def _check_open(self) -> None:
        if self._receive_guard is CLOSED or self._receive_guard is LOOP_ENDED:
            raise self._refusal(self._receive_guard, "receiving from")

    def _keep(self, data: bytes | memoryview) -> None:
        if len(data):
            self._kept = memoryview(bytes(data) + self._kept)

    def _consume(self, count: int) -> None:
        if self._kept:
            self._kept = self._kept[count:]
        else:
            self._pipe.consume(count)

    # -- what it is

    @property
    def at_eof(self) -> bool:
        """Whether nothing will be received any more: the peer has finished sending and everything was
        received, or this end is closed. Takes nothing: ask at any time, also while a task receives.
        """
        if self._receive_guard is CLOSED or self._receive_guard is LOOP_ENDED:
            return True
        self._look_in_loop()
        return not self._kept and self._pipe.at_eof

    def _look(self) -> None:
        self._pipe.look()

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


def _no_polling() -> bool:
    return False


def _size(max_bytes: object) -> int:
    size = operator.index(max_bytes)  # type: ignore[arg-type]  # TypeError for a float
    if size < 1:
        raise ValueError(f"max_bytes must be at least 1, not {size}")
    return size
