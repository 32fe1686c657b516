"""Connected datagrams: whole messages, reliable and in order, over RDMA or TCP.

``await connect_datagram(host, port)`` and ``await listen_datagram(host, port)`` give both ends a
:class:`DatagramConnection`. One message sent is one message received, however the bytes travelled: on a ring
(``pipes/_ring_records.pyx``) or on a connection of the kernel (``pipes/tcp_records.py``).

Operations that can complete at once do so here; the others wait in :mod:`aiordma.wake.duplex`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import anyio.abc
from anyio import BrokenResourceError, WouldBlock

from .. import wake
from ..config import Config
from ..errors import AioRdmaError, Code, NegotiationError
from ..negotiation import driver as negotiate
from ..negotiation import peer_cache as peers
from ..negotiation.accept import ConnectionListener, open_listener
from ..pipes.tcp_records import StreamDatagrams
from ..proto.clc import Kind
from ..wake.duplex import BUSY, Loan, OutgoingMessage
from ..wake.pipe_end import PipeEnd

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ssl import SSLContext, SSLObject

    from ..addresses import Address
    from ..config import Mode
    from ..errors import FallbackReason
    from ..pipes.contracts import Buffer, MessagePipe

__all__ = [
    "DatagramConnection",
    "DatagramListener",
    "DatagramStatistics",
    "connect_datagram",
    "listen_datagram",
]

T = TypeVar("T")


class DatagramStatistics(NamedTuple):
    """Counters of a connection."""

    messages_sent: int
    messages_received: int
    #: how often a message found no room at the peer
    times_blocked: int


#: Messages that count as one operation of a share in the batch forms.
_BATCH_SHARE = 16


class DatagramConnection(PipeEnd, anyio.abc.ObjectStream[bytes]):
    """Messages to and from one peer: boundaries kept, none lost, in order (see :attr:`path`).

    Made by :func:`connect_datagram` and :class:`DatagramListener`. Belongs to the event loop it was made in.
    One task may send while another receives; a second one in the same direction gets
    ``anyio.BusyResourceError``.

    Cancellation: a cancelled :meth:`send` has sent nothing, a cancelled :meth:`receive` has taken nothing.
    """

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
        self._pipe: MessagePipe = pipe
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
        if waker.share > 0 and self._send_guard is None and not waker.cancel_requested():
            if self._try_send(item):
                waker.share -= 1
                return
            await self._send_later(item, True)
        else:
            await self._send_later(item, False)

    async def _send_later(self, item: Buffer, begun: bool) -> None:
        await self._send_when_room(self._outgoing(item), begun)

    def _outgoing(self, item: Buffer) -> OutgoingMessage:
        size = memoryview(item).nbytes
        return OutgoingMessage(lambda: self._pipe.try_send(item), lambda: self._pipe.spin_writable(size))

    def send_nowait(self, item: Buffer) -> None:
        """Send one message now. Never yields to the event loop.

        :raises anyio.WouldBlock: the peer's ring has no room for it; nothing was sent
        """
        if self._send_guard is not None:
            raise self._refusal(self._send_guard, "sending to")
        if not self._try_send(item):
            raise WouldBlock

    async def send_many(self, items: Sequence[Buffer]) -> None:
        """Send messages in order, for less than one :meth:`send` each costs.

        Cancelled: the first ones were sent, possibly none. Errors as in :meth:`send`, also of a single item;
        those before it were sent then.
        """
        if self._send_guard is not None:
            raise self._refusal(self._send_guard, "sending to")
        waker, pipe = self._waker, self._pipe
        # It yields between its messages, and no other task's messages may come between them.
        self._send_guard = BUSY
        try:
            await self._begin()
            sent, total = 0, len(items)
            while sent < total:
                placed = pipe.send_many(items[sent : sent + _MOST_AT_ONCE] if sent else items[:_MOST_AT_ONCE])
                sent += placed
                waker.share -= 1 + placed // _BATCH_SHARE
                if not placed:
                    await self._place_when_room(self._outgoing(items[sent]), True)
                    sent += 1
                elif waker.share <= 0 and sent < total:
                    await waker.checkpoint()
            await self._end(False)
        finally:
            if self._send_guard is BUSY:
                self._send_guard = None

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
        if waker.share > 0 and self._receive_guard is None and not waker.cancel_requested():
            data = self._poll_receive()
            if data is not None:
                share = waker.share - 1
                # Polling takes time as well: every few operations the clock is asked.
                waker.share = share if share & 7 or not waker.share_overdue() else 0
                return data
            return await self._receive_when_there(self._pipe.try_receive, True)
        return await self._receive_when_there(self._pipe.try_receive, False)

    def receive_nowait(self) -> bytes:
        """The next message, if it is here now. Never yields to the event loop.

        :raises anyio.WouldBlock: none is here; other errors as in :meth:`receive`
        """
        if self._receive_guard is not None:
            raise self._refusal(self._receive_guard, "receiving from")
        data = self._poll_receive()
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
        if waker.share > 0 and self._receive_guard is None and not waker.cancel_requested():
            messages = take()
            if messages is not None:
                waker.share -= 1 + len(messages) // _BATCH_SHARE
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


async def message_pipe_of(outcome: negotiate.Outcome, config: Config) -> MessagePipe:
    """The pipe of a connection whose path is agreed on, which it owns from now on, also when this raises.

    :raises OSError: (``NegotiationError``) the peer on TCP does not speak datagrams.
    """
    if outcome.pipe is not None:
        from ..pipes._ring_records import RingDatagrams

        return RingDatagrams(outcome.pipe)
    pipe = outcome.tcp_pipe()
    try:
        framed = StreamDatagrams(pipe, config.ring_bytes - 4)
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


def _connection(pipe: MessagePipe, outcome: negotiate.Outcome) -> DatagramConnection:
    return DatagramConnection(
        pipe,
        local_address=outcome.local_address,
        remote_address=outcome.remote_address,
        fallback_reason=outcome.fallback,
        tls=outcome.session,
    )


async def connect_datagram(
    host: str,
    port: int,
    *,
    config: Config | None = None,
    mode: Mode | None = None,
    local_host: str | None = None,
    ssl: SSLContext | bool | None = None,
    server_hostname: str | None = None,
    rdma_outside_tls: bool = False,
) -> DatagramConnection:
    """Connect to a server of datagrams (:func:`listen_datagram`).

    Parameters and path as in :func:`aiordma.connect`. The server's program must listen for datagrams: one
    that listens for streams, or another program, is found out and refused.

    :raises OSError: no TCP connection could be made, naming each address.
    :raises aiordma.NegotiationError: (an ``OSError``, too) the peer does not speak datagrams; or RDMA is
        demanded and not to be had; ``code`` and ``text`` say why.
    """
    config = config or Config.from_env()
    pipe, outcome = await open_message_pipe(
        host, port, config, mode, local_host, ssl, server_hostname, rdma_outside_tls
    )
    return _connection(pipe, outcome)


async def open_message_pipe(
    host: str,
    port: int,
    config: Config,
    mode: Mode | None = None,
    local_host: str | None = None,
    ssl: SSLContext | bool | None = None,
    server_hostname: str | None = None,
    rdma_outside_tls: bool = False,
) -> tuple[MessagePipe, negotiate.Outcome]:
    """What :func:`connect_datagram` puts its object on; for other surfaces."""
    tls = negotiate.Tls.of_client(ssl, server_hostname or host, rdma_outside_tls)
    outcome = await negotiate.client(
        host, port, config=config, mode=mode, local_host=local_host, tls=tls, kind=Kind.DATAGRAMS
    )
    pipe = await message_pipe_of(outcome, config)
    peers.announce("server", f"{host}:{port}", outcome.path, outcome.fallback)
    return pipe, outcome


class DatagramListener(ConnectionListener[DatagramConnection]):
    """A listener for connected datagrams. Made by :func:`listen_datagram`.

    A client that does not speak datagrams is turned away; nobody else waits for it.
    """

    kind = Kind.DATAGRAMS

    async def _make(self, outcome: negotiate.Outcome) -> DatagramConnection:
        return _connection(await message_pipe_of(outcome, self._config), outcome)


async def listen_datagram(
    host: str | Sequence[str] | None = None,
    port: int = 0,
    *,
    config: Config | None = None,
    mode: Mode | None = None,
    backlog: int = 1024,
    reuse_address: bool = True,
    reuse_port: bool = False,
    max_negotiations: int = 1024,
    max_pending: int = 4096,
    ssl: SSLContext | None = None,
    rdma_outside_tls: bool = False,
) -> DatagramListener:
    """Listen for datagram connections. Parameters and errors as in :func:`aiordma.listen`."""
    return await open_listener(
        DatagramListener,
        host,
        port,
        config=config,
        mode=mode,
        backlog=backlog,
        reuse_address=reuse_address,
        reuse_port=reuse_port,
        max_negotiations=max_negotiations,
        max_pending=max_pending,
        ssl=ssl,
        rdma_outside_tls=rdma_outside_tls,
    )
