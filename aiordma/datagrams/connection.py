"""Connected datagrams: whole messages, reliable and in order, over RDMA or TCP.

``connect_datagram(host, port)`` and ``listen_datagram(host, port)`` give both ends a
:class:`DatagramConnection`. One message sent is one message received, however the bytes travelled: on a ring
(``pipes/_ring_records.pyx``) or on a connection of the kernel (``pipes/tcp_records.py``).

Operations that can complete at once do so here; the others wait in :mod:`aiordma.wake.duplex`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import anyio.abc
from anyio import BrokenResourceError, EndOfStream, WouldBlock

from .. import wake
from ..errors import AioRdmaError, Code, NegotiationError
from ..negotiation import peer_cache
from ..negotiation.accept import ConnectionListener, open_listener
from ..negotiation.connect import connect_and_negotiate
from ..negotiation.opening import opening
from ..negotiation.options import ConnectOptions, ListenOptions, documented_by
from ..pipes.tcp_records import TcpDatagrams
from ..proto.clc import Kind
from ..proto.record import too_large
from ..wake.duplex import BUSY, CLOSED, LOOP_ENDED, PENDING, Loan, OutgoingMessage
from ..wake.interrupts import uninterrupted
from ..wake.message_outbox import MessageOutbox
from ..wake.send_soon import SendsSoon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from ssl import SSLObject
    from typing import Unpack

    from typing_extensions import Buffer as AnyBuffer

    from ..addresses import Address
    from ..config import Config
    from ..errors import FallbackReason
    from ..negotiation.dialogue import NegotiationResult
    from ..negotiation.options import ConnectKeywords, ListenKeywords
    from ..pipes.contracts import Buffer, MessagePipe
    from ..wake.outbox import Outbox

T = TypeVar("T")


class DatagramStatistics(NamedTuple):
    """Counters of a connection."""

    messages_sent: int
    messages_received: int
    #: how often a message found no room at the peer
    times_blocked: int


#: Messages that count as one operation of a share in the batch forms.
_BATCH_SHARE = 16


@uninterrupted
class DatagramConnection(SendsSoon, anyio.abc.ObjectStream[bytes]):
    """Messages to and from one peer: boundaries kept, none lost, in order (see :attr:`path`).

    Made by :func:`connect_datagram` and :class:`DatagramListener`. Belongs to the event loop it was made in.
    One task may send while another receives; a second one in the same direction gets
    ``anyio.BusyResourceError``.

    Cancellation: a cancelled :meth:`send` has sent nothing, a cancelled :meth:`receive` has taken nothing.
    """

    _pipe: MessagePipe
    _outbox: MessageOutbox | None = None

    def __init__(
        self,
        pipe: MessagePipe,
        *,
        local_address: Address,
        remote_address: Address,
        fallback_reason: FallbackReason | None = None,
        tls: SSLObject | None = None,
    ) -> None:
        super().__init__(local_address, remote_address, fallback_reason, tls)
        self._pipe = pipe
        # Bound once: on the path of a small message every hundred nanoseconds count.
        self._try_send = pipe.try_send
        self._poll_receive = pipe.poll_receive
        self._spin_readable = pipe.spin_readable

    # -- sending

    async def send(self, item: Buffer) -> None:
        """Send one message (which may be empty); returns when the peer's ring has room for it.

        Cancelled: it was not sent.

        :raises OSError: (``errno.EMSGSIZE``) it is larger than :attr:`max_message_bytes`
        :raises anyio.ClosedResourceError: after :meth:`aclose` or :meth:`send_eof`
        :raises anyio.BrokenResourceError: the connection is lost (the cause says why)
        :raises anyio.BusyResourceError: another task is sending
        """
        waker = self._waker
        if self._send_guard is None and waker.may_begin():
            if self._try_send(item):
                waker.count(0)
                return
            await self._send_later(item, True)
        else:
            await self._send_later(item, False)

    async def _send_later(self, item: Buffer, begun: bool) -> None:
        outbox = self._outbox
        try:
            await self._send_when_room(self._outgoing(item), begun)
        finally:
            if outbox is not None:
                self._settle(outbox)

    def _outgoing(self, item: Buffer) -> OutgoingMessage:
        size, outbox = memoryview(item).nbytes, self._outbox
        if outbox is None:
            return OutgoingMessage(lambda: self._pipe.try_send(item), lambda: self._pipe.spin_writable(size))
        return OutgoingMessage(
            lambda: outbox.push() and self._pipe.try_send(item),
            lambda: self._pipe.spin_writable(outbox.first_bytes if outbox.nbytes else size),
        )

    def send_nowait(self, item: Buffer) -> None:
        """Send one message now. Never yields to the event loop.

        :raises anyio.WouldBlock: the peer's ring has no room for it, or what :meth:`send_soon` accepted waits
            for some; nothing was sent
        """
        if self._send_guard is not None and not self._send_now_behind():
            raise WouldBlock
        if not self._try_send(item):
            self._pipe.look()
            if not self._try_send(item):
                raise WouldBlock

    async def send_many(self, items: Sequence[Buffer]) -> None:
        """Send messages in order, for less than one :meth:`send` each costs.

        Cancelled: the first ones were sent, possibly none. Errors as in :meth:`send`, also of a single item;
        those before it were sent then.
        """
        if self._send_guard is not None and self._send_guard is not PENDING:
            raise self._refusal(self._send_guard, "sending to")
        waker, pipe = self._waker, self._pipe
        # It yields between its messages, and no other task's messages may come between them.
        self._send_guard = BUSY
        try:
            await self._begin()
            if self._outbox is not None:
                await self._drain(self._outbox)
                self._outbox.check()
            sent, total = 0, len(items)
            while sent < total:
                placed = pipe.send_many(items[sent : sent + _MOST_AT_ONCE] if sent else items[:_MOST_AT_ONCE])
                sent += placed
                waker.count(placed // _BATCH_SHARE)
                if not placed:
                    await self._place_when_room(self._outgoing(items[sent]), True)
                    sent += 1
                elif waker.share <= 0 and sent < total:
                    await waker.checkpoint()
            await self._end(False)
        finally:
            if self._send_guard is BUSY:
                self._send_guard = None
                if self._outbox is not None:
                    self._settle(self._outbox)

    def send_soon(self, messages: AnyBuffer | Iterable[AnyBuffer]) -> None:
        """Send messages in order, without waiting: what finds no room now goes out by itself when there is
        some. Before everything that is sent later, by any method. One buffer alone is one message.

        Messages of more than 4 KiB are not copied: leave them as they are until :meth:`flush` returns. Never
        yields to the event loop, so any of its callbacks may call it. It accepts all messages or, when it
        raises, none.

        :raises anyio.WouldBlock: :attr:`send_soon_limit` bytes or more wait already, with 64 for each message
        :raises OSError: (``errno.EMSGSIZE``) one is larger than :attr:`max_message_bytes`
        :raises anyio.BusyResourceError: a task is in :meth:`send`
        :raises anyio.ClosedResourceError: after :meth:`aclose` or :meth:`send_eof`
        :raises anyio.BrokenResourceError: the connection is lost; perhaps with messages accepted before
        """
        self._accept(messages)

    def _new_outbox(self, on_room: Callable[[], None] | None) -> MessageOutbox:
        return MessageOutbox(self._pipe, on_room, self._check_size)

    def _check_size(self, size: int) -> None:
        if size > self.max_message_bytes:
            raise too_large(size, self.max_message_bytes)

    def _poll_outbox(self, outbox: Outbox) -> bool:
        assert isinstance(outbox, MessageOutbox)
        return self._pipe.spin_writable(outbox.first_bytes) and outbox.push()

    def _receive_something(self) -> object:
        return self._pipe.try_receive() is not None

    # -- receiving

    async def receive(self) -> bytes:
        """The next message, whole. ``b""`` is an empty message, not the end.

        Cancelled: nothing was taken.

        :raises anyio.EndOfStream: the peer has finished sending, and everything was received
        :raises anyio.ClosedResourceError: this end is closed
        :raises anyio.BrokenResourceError: the connection is lost (the cause says why)
        :raises anyio.BusyResourceError: another task is receiving
        """
        waker = self._waker
        if self._receive_guard is None and waker.may_begin():
            data = self._poll_receive()
            if data is not None:
                waker.count_polled(0)
                return data
            return await self._receive_when_there(self._pipe.try_receive, True)
        return await self._receive_when_there(self._pipe.try_receive, False)

    def receive_nowait(self) -> bytes:
        """The next message, if it is here now. Never yields to the event loop.

        :raises anyio.WouldBlock: none is here; other errors as in :meth:`receive`
        """
        if self._receive_guard is not None:
            raise self._refusal(self._receive_guard, "receiving from")
        data = self._pipe.try_receive()
        if data is None:
            self._pipe.look()
            data = self._pipe.try_receive()
            if data is None:
                raise WouldBlock
        return data

    async def receive_many(self, most: int = 256) -> list[bytes]:
        """All messages that are here, from one to ``most``: cheaper than a :meth:`receive` for each.

        Errors and cancellation as in :meth:`receive`.
        """
        if most < 1:
            raise ValueError(f"most must be at least 1, not {most}")
        pipe = self._pipe

        def take() -> list[bytes] | None:
            return pipe.receive_many(most)

        waker = self._waker
        if self._receive_guard is None and waker.may_begin():
            messages = take()
            if messages is not None:
                waker.count(len(messages) // _BATCH_SHARE)
                return messages
            return await self._receive_when_there(take, True)
        return await self._receive_when_there(take, False)

    async def borrow(self) -> Loan:
        """Lend the next message where it is: ``with await connection.borrow() as view: ...``.

        ``view`` is a read-only memoryview, valid inside the ``with`` block only; the message counts as
        received when the block is left. It is a view of the ring itself unless the message runs over the
        ring's end, where it is copied. Meanwhile the peer's credit is held back.

        Errors as in :meth:`receive`.
        """
        view = await self._receive_when_there(self._pipe.peek, False)
        return Loan(self, view, lambda: self._pipe.discard())

    # -- what it is

    @property
    def at_eof(self) -> bool:
        """Whether nothing will be received any more: the peer has finished sending and everything was
        received, or this end is closed. Takes nothing."""
        if self._receive_guard is CLOSED or self._receive_guard is LOOP_ENDED:
            return True
        self._look_in_loop()
        try:
            self._pipe.peek()
        except EndOfStream:
            return True
        except BrokenResourceError:
            pass
        return False

    def _look(self) -> None:
        self._pipe.look()
        with contextlib.suppress(EndOfStream, BrokenResourceError):
            self._pipe.peek()

    @property
    def max_message_bytes(self) -> int:
        """The largest message that the peer takes: its ring, less four bytes."""
        return self._pipe.max_message_bytes

    @property
    def writable(self) -> int:
        """The largest message that :meth:`send_nowait` would take now; -1: not even an empty one."""
        return self._pipe.writable

    def statistics(self) -> DatagramStatistics:
        """What happened so far."""
        pipe = self._pipe
        return DatagramStatistics(pipe.messages_sent, pipe.messages_received, pipe.times_blocked)


#: Messages handed to the pipe in one go: a long list must not hold up the loop.
_MOST_AT_ONCE = 1024


# -- connections


@uninterrupted
async def message_pipe_of(result: NegotiationResult, config: Config) -> MessagePipe:
    """The pipe of a connection whose path is agreed on, which it owns from now on, also when this raises.

    :raises OSError: (``NegotiationError``) the peer on TCP does not speak datagrams.
    """
    if result.pipe is not None:
        from ..pipes._ring_records import RingDatagrams

        return RingDatagrams(result.pipe)
    pipe = result.tcp_pipe()
    try:
        framed = TcpDatagrams(pipe, config.ring_bytes - 4)
        waiter = wake.current().new_waiter()
        framed.on_readable = waiter.set
        deadline = wake.current().now() + config.negotiate_timeout_ms / 1000
        while not framed.greeted():
            if not await waiter.wait_until(deadline) and not framed.greeted():
                raise NegotiationError(
                    Code.PROTOCOL_VIOLATION,
                    f"the peer did not say within {config.negotiate_timeout_ms} ms that it speaks "
                    "datagrams; is it another program?",
                )
        framed.on_readable = None
    except BaseException as error:
        pipe.abort()
        if isinstance(error, AioRdmaError) and not isinstance(error, NegotiationError):
            raise NegotiationError(Code.PROTOCOL_VIOLATION, str(error)) from error
        if isinstance(error, BrokenResourceError):
            raise ConnectionResetError(f"the peer closed the connection: {error}") from error
        raise
    return framed


def _connection(pipe: MessagePipe, result: NegotiationResult) -> DatagramConnection:
    return DatagramConnection(
        pipe,
        local_address=result.local_address,
        remote_address=result.remote_address,
        fallback_reason=result.fallback,
        tls=result.session,
    )


@documented_by(ConnectOptions.of)
@opening
async def connect_datagram(host: str, port: int, **keywords: Unpack[ConnectKeywords]) -> DatagramConnection:
    """Connect to a server of datagrams (:func:`listen_datagram`): with ``async with``, or ``await``.

    Parameters and path as in :func:`aiordma.connect`. The server must listen for datagrams; one that listens
    for streams, or another program, is recognized and refused.

    :raises OSError: no TCP connection could be made, naming each address.
    :raises aiordma.NegotiationError: (an ``OSError``, too) the peer does not speak datagrams; or RDMA is
        demanded and cannot be used; ``code`` and ``text`` give the reason.
    """
    return _connection(*await open_message_pipe(host, port, ConnectOptions.of(host, **keywords)))


@uninterrupted
async def open_message_pipe(
    host: str, port: int, options: ConnectOptions
) -> tuple[MessagePipe, NegotiationResult]:
    """What :func:`connect_datagram` puts its object on; for other surfaces."""
    result = await connect_and_negotiate(host, port, options, Kind.DATAGRAMS)
    pipe = await message_pipe_of(result, options.config)
    peer_cache.announce("server", f"{host}:{port}", result.path, result.fallback)
    return pipe, result


class DatagramListener(ConnectionListener[DatagramConnection]):
    """A listener for connected datagrams. Made by :func:`listen_datagram`.

    A client that does not speak datagrams is turned away; no other client waits for it.
    """

    kind = Kind.DATAGRAMS

    async def _make(self, result: NegotiationResult) -> DatagramConnection:
        return _connection(await message_pipe_of(result, self._options.config), result)


@documented_by(ListenOptions.of)
@opening
async def listen_datagram(
    host: str | Sequence[str] | None = None, port: int = 0, **keywords: Unpack[ListenKeywords]
) -> DatagramListener:
    """Listen for datagram connections. Parameters, use and errors as in :func:`aiordma.listen`."""
    return await open_listener(DatagramListener, host, port, ListenOptions.of(**keywords))
