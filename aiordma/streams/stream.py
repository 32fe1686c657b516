"""Stations 1 and 8 of the path of a byte: the stream that users hold.

A stream is a handle over a *pipe* (:class:`Pipe`): a ring pipe over RDMA, or a TCP connection with the same
contract. Pipes never wait; all waiting is here, and always in the same order: take what is there; poll for a
moment if the engine's policy allows it; let the pipe call back; **look once more**, since what came before
the callback was set announces itself to nobody; sleep.

Checkpoints. On trio every call is a full checkpoint. On asyncio an operation that can complete at once
notices a cancellation before it takes anything, and gives the loop a turn only when its share is used up (see
:mod:`aiordma.wake.base`), so that a busy stream pays no loop iteration per message and still starves nobody.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import anyio.abc
from anyio import BrokenResourceError, BusyResourceError, ClosedResourceError, EndOfStream, WouldBlock

from .. import wake
from ..attributes import RdmaAttribute, address_attributes, tls_attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from ssl import SSLObject
    from types import TracebackType

    from ..addresses import Address
    from ..errors import FallbackReason
    from ..pipes.contracts import Buffer, Pipe
    from ..wake.base import Waiter

__all__ = ["Loan", "RdmaStream", "RingCredit"]

T = TypeVar("T")


class RingCredit(NamedTuple):
    """The window of a stream's back-pressure, as it is now (names as in :class:`aiordma.CreditWindow`)."""

    #: bytes that :meth:`RdmaStream.send_nowait` would take now; on TCP 1 stands for "some"
    available: int
    #: size of the peer's ring; 0 where it is not known (TCP)
    limit: int


# Why a direction cannot be used now. None means that it can: one look instead of three on the fast path.
_BUSY, _EOF_SENT, _CLOSED = 1, 2, 3

# A poll_send() that has placed less, and not everything, has polled in vain.
_SEND_STEP = 256 * 1024


class RdmaStream(anyio.abc.ByteStream):
    """A byte stream over RDMA, or over TCP where RDMA is not to be had (:attr:`path` tells).

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
        self._pipe = pipe
        # Bound once: on the way of a round trip every hundred nanoseconds count.
        self._try_send = pipe.try_send
        self._poll_receive = pipe.poll_receive
        self._waker = wake.current()
        self._full_checkpoints = self._waker.name == "trio"
        self._polls = pipe.path != "tcp"
        self._send_guard: int | None = None
        self._receive_guard: int | None = None
        self._send_waiter: Waiter | None = None
        self._receive_waiter: Waiter | None = None
        self._local_address = local_address
        self._remote_address = remote_address
        self._fallback_reason = fallback_reason
        self._tls = tls

    # -- sending

    async def send(self, item: Buffer) -> None:
        """Send all bytes of ``item``; returns when they are in the peer's ring or on their way there.

        Waits while the ring is full. Cancelled: a prefix may have been sent.

        :raises anyio.ClosedResourceError: after :meth:`aclose` or :meth:`send_eof`
        :raises anyio.BrokenResourceError: the connection is lost (the cause says why)
        :raises anyio.BusyResourceError: another task is sending
        """
        waker = self._waker
        if (
            item.__class__ is bytes
            and waker.share > 0
            and self._send_guard is None
            and not waker.cancel_requested()
        ):
            placed = self._try_send(item)
            waker.share -= 1 + (placed >> 12)
            if placed == len(item):
                return
            await self._send_rest(memoryview(item), placed, begun=True)
        else:
            await self._send_rest(memoryview(item).cast("B"), 0, begun=False)

    async def _send_rest(self, view: memoryview, placed: int, *, begun: bool) -> None:
        if self._send_guard is not None:
            raise self._refusal(self._send_guard, "sending to")
        self._send_guard = _BUSY
        try:
            waker = self._waker
            pipe = self._pipe
            total = len(view)
            if not begun:
                await self._begin()
                placed = pipe.try_send(view, 0)
            waited = False
            while placed < total:
                if self._polls:
                    step = pipe.poll_send(view, placed)
                    placed += step
                    if placed == total or step >= _SEND_STEP:
                        if waker.share_overdue():
                            await waker.checkpoint()
                        continue
                waiter = self._send_waiter
                if waiter is None:
                    waiter = self._send_waiter = waker.new_waiter()
                    pipe.on_writable = waiter.set
                else:
                    waiter.clear()
                placed += pipe.try_send(view, placed)
                if placed < total:
                    await waiter.wait()
                    waited = True
                    waker.renew_share()
                    placed += pipe.try_send(view, placed)
            await self._end(waited)
        finally:
            view.release()
            if self._send_guard is _BUSY:
                self._send_guard = None

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

    async def send_eof(self) -> None:
        """Tell the peer that nothing more will be sent; receiving goes on. Idempotent."""
        if self._send_guard is not None and self._send_guard is not _EOF_SENT:
            raise self._refusal(self._send_guard, "sending to")
        await self._waker.checkpoint()
        if self._send_guard is None:
            if self._pipe.error is not None:
                raise BrokenResourceError from self._pipe.error
            self._pipe.send_eof()
            self._send_guard = _EOF_SENT

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
            raise EndOfStream
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
            raise EndOfStream
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
            raise EndOfStream
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
            raise EndOfStream
        return Loan(self, view if max_bytes is None else view[:max_bytes])

    async def _receive_when_there(self, take: Callable[[], T | None], looked: bool) -> T:
        """What ``take()`` gives, as soon as it gives something.

        :param looked: the operation has begun, and a first look found nothing.
        """
        if self._receive_guard is not None:
            raise self._refusal(self._receive_guard, "receiving from")
        self._receive_guard = _BUSY
        try:
            taken = None
            if not looked:
                await self._begin()
                taken = take()
            if taken is None and self._polls and self._pipe.spin_readable():
                if self._waker.share_overdue():
                    await self._waker.checkpoint()
                taken = take()
            waited = False
            if taken is None:
                waiter = self._receive_waiter
                if waiter is None:
                    waiter = self._receive_waiter = self._waker.new_waiter()
                    self._pipe.on_readable = waiter.set
                else:
                    waiter.clear()
                while (taken := take()) is None:
                    await waiter.wait()
                    waited = True
                    self._waker.renew_share()
            await self._end(waited)
            return taken
        finally:
            if self._receive_guard is _BUSY:
                self._receive_guard = None

    # -- the end

    async def aclose(self) -> None:
        """Close both directions; what was sent still reaches the peer. Idempotent.

        Does not wait for the peer. In a cancelled scope (``anyio.aclose_forcefully``) the connection is
        aborted instead: the peer gets an error. Tasks that wait in this stream get ``ClosedResourceError``.
        """
        if self._receive_guard is not _CLOSED:
            cancelled = self._waker.cancel_requested()
            self._send_guard = self._receive_guard = _CLOSED
            if cancelled:
                self._pipe.abort()
            else:
                self._pipe.close()
            for waiter in (self._send_waiter, self._receive_waiter):
                if waiter is not None:
                    waiter.set()
        await self._waker.checkpoint()

    # -- what it is

    @property
    def path(self) -> str:
        """ "rdma" or "tcp"."""
        return self._pipe.path

    @property
    def fallback_reason(self) -> FallbackReason | None:
        """Why this stream runs on TCP, from the beginning or since it left RDMA; None on the RDMA path."""
        return self._fallback_reason or getattr(self._pipe, "fallback_reason", None)

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        attributes = dict(address_attributes(self._local_address, self._remote_address))
        attributes[RdmaAttribute.path] = lambda: self._pipe.path
        reason = self.fallback_reason
        if reason is not None:
            attributes[RdmaAttribute.fallback_reason] = lambda: reason
        tls = self._tls
        if tls is not None:
            attributes.update(tls_attributes(tls))
        return attributes

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

    def __repr__(self) -> str:
        state = " closed" if self._receive_guard is _CLOSED else ""
        (host, port), (peer, peer_port) = self._local_address, self._remote_address
        return f"<RdmaStream {self.path} {host}:{port} - {peer}:{peer_port}{state}>"

    # -- inside

    async def _begin(self) -> None:
        """The checkpoint before an operation takes or places anything."""
        if self._full_checkpoints or self._waker.share > 0:
            await self._waker.cancel_check()
        else:
            await self._waker.checkpoint()

    async def _end(self, waited: bool) -> None:
        """Behind an operation that went the slow way: its bytes are taken or placed and must not be lost."""
        if not self._full_checkpoints:
            self._waker.share -= 1
        elif not waited:
            await self._waker.shielded_yield()

    def _refusal(self, guard: int, action: str) -> Exception:
        if guard is _BUSY:
            return BusyResourceError(action)
        return ClosedResourceError("this stream is closed" if guard is _CLOSED else "send_eof() was called")


def _size(max_bytes: object) -> int:
    size = operator.index(max_bytes)  # type: ignore[arg-type]  # TypeError for a float
    if size < 1:
        raise ValueError(f"max_bytes must be at least 1, not {size}")
    return size


class Loan:
    """Received bytes that still lie in the ring, for the duration of a ``with`` block."""

    __slots__ = ("_stream", "_view")

    def __init__(self, stream: RdmaStream, view: memoryview) -> None:
        self._stream = stream
        self._view = view
        stream._receive_guard = _BUSY

    def __enter__(self) -> memoryview:
        return self._view

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        stream = self._stream
        if stream._receive_guard is _BUSY:  # otherwise the stream was closed inside the block
            stream._receive_guard = None
            stream._pipe.consume(len(self._view))
        # Whoever kept the view gets a ValueError from it, not other people's bytes.
        self._view.release()
