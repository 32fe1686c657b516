"""Message channels: whole messages between two ends, in order, without waiting.

Calls and other users of messages are built on them. A channel never blocks: :meth:`Channel.try_send` takes a
message whole or not at all, and everything that arrives comes by callback. Waiting is the business of the
packages above. One contract, three carriers: a link (``pipes/_link_channel.pyx``), a TCP connection
(``pipes/tcp_channel.py``), and memory, for tests (``testing/channel.py``).
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import anyio.abc
from anyio import BrokenResourceError, ClosedResourceError

from .. import wake
from ..addresses import show
from ..errors import Code, LinkError, NegotiationError
from ..negotiation import peer_cache
from ..negotiation.accept import ConnectionListener, open_listener
from ..negotiation.connect import connect_and_negotiate
from ..negotiation.options import ConnectOptions, ListenOptions, documented_by
from ..observe.trace import recorder
from ..pipes.tcp_channel import TcpChannel
from ..proto.clc import Kind
from ..wake.draining import UNCLOSED_SECONDS, Draining
from ..wake.ending import release_unclosed
from ..wake.interrupts import uninterrupted
from ..wake.message_outbox import ChannelOutbox
from ..wake.origin import here
from ..wake.outbox import OUTBOX_BYTES
from ..wake.threads import check_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from ssl import SSLObject
    from typing import Unpack

    from typing_extensions import Buffer

    from ..addresses import Address
    from ..config import Config
    from ..errors import FallbackReason
    from ..negotiation.dialogue import NegotiationResult
    from ..negotiation.options import ConnectKeywords, ListenKeywords
    from ..pipes.contracts import Channel
    from ..pipes.tcp import TcpPipe


@uninterrupted
class ConnectedChannel(anyio.abc.AsyncResource):
    """A channel whose path is agreed on, and what is known of its peer. Closing it closes the channel in
    order; one that is dropped without that gives a ``ResourceWarning``, and the channel is closed, unless
    :meth:`detach` was called.
    """

    #: While so many bytes of :meth:`send_soon` wait, it accepts no more.
    send_soon_limit = OUTBOX_BYTES

    def __init__(
        self,
        channel: Channel,
        *,
        local_address: Address,
        remote_address: Address,
        fallback_reason: FallbackReason | None,
        tls: SSLObject | None,
    ) -> None:
        self.channel = channel
        self.path = channel.path
        """``"rdma"`` or ``"tcp"``."""
        self.fallback_reason = fallback_reason
        """Why the path is TCP."""
        self.local_address = local_address
        self.remote_address = remote_address
        self.tls = tls
        """The TLS session of the connection, if it has one."""
        self._waker = wake.current()
        self._waker.bind(self)
        self.origin = here()
        self._owns = True
        self._outbox: ChannelOutbox | None = None
        check_threads(self, self._waker, "send_soon", "abort")

    def detach(self) -> Channel:
        """The channel, which this object does not close any more when it is dropped."""
        self._owns = False
        return self.channel

    def loop_ended(self) -> None:
        """See :class:`aiordma.wake.base.LoopBound`."""
        if self._owns and self.channel.path == "tcp":  # the engine ends what runs on RDMA
            if self._push_out():
                self.channel.close()
            else:
                _unclosed.add(self._waker, self)

    def _push_out(self) -> bool:
        """Send what the channel takes; whether nothing is left. The loop may watch nothing any more."""
        if self._outbox is None or self._outbox.push():
            return True
        self.channel.spin()
        return self._outbox.push()

    def _end_parting(self) -> None:
        if self._push_out():
            self.channel.close()
        else:
            self.channel.abort()  # the peer must not take it for whole
            self._drop_waiting()

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        if getattr(self, "_owns", False):
            release_unclosed(self, self._waker, self.channel.close, _warn)

    async def aclose(self) -> None:
        """Close in order: what was sent, or accepted by :meth:`send_soon`, still arrives. In a cancelled
        scope the connection is dropped."""
        self._owns = False
        try:
            await self.flush()
        except BrokenResourceError:
            pass
        except BaseException:
            self.abort()
            raise
        self.channel.close()

    def abort(self) -> None:
        """Drop the connection now: the peer gets an error. Waits for nothing; idempotent."""
        self._owns = False
        self.channel.abort()
        self._drop_waiting()

    # -- sending without waiting (a channel itself takes a message now, or not at all)

    def send_soon(self, bodies: Buffer | Iterable[Buffer], head: bytes = b"") -> None:
        """Send messages in order, without waiting: those that find no room now go out by themselves when
        there is some. One buffer alone is one message. Of more than 4 KiB, they are not copied: leave them as
        they are until :meth:`flush` returns. All of them are accepted, or none.

        From the first call on, the channel's ``on_writable`` and ``on_closed`` are this object's: set the
        latter before, and it is still called. A message that is sent past this object may overtake those that
        wait.

        :param head: of each message, at most ``MAX_HEAD_BYTES``.
        :raises anyio.WouldBlock: :attr:`send_soon_limit` bytes or more wait already, with 64 for each message
        :raises ValueError: one is longer than the channel allows.
        :raises anyio.ClosedResourceError: this end was closed. :raises anyio.BrokenResourceError: the channel
            is lost, or the peer has closed it; perhaps with messages accepted before.
        """
        outbox = self._outbox
        if outbox is None:
            outbox = self._outbox = self._new_outbox()
        outbox.check()
        outbox.add_with(head, bodies, self.send_soon_limit)
        outbox.push()
        outbox.check()

    def _new_outbox(self) -> ChannelOutbox:
        channel = self.channel
        before = channel.on_closed
        outbox = ChannelOutbox(channel, channel.max_message_bytes)

        def on_closed(error: BaseException | None) -> None:
            if outbox.nbytes:
                reason = error or LinkError("the peer has closed the connection")
                outbox.drop(BrokenResourceError(str(reason)))
            if before is not None:
                before(error)

        channel.on_closed = on_closed
        return outbox

    async def flush(self) -> None:
        """Wait until the channel has taken everything that :meth:`send_soon` accepted. Any number of tasks
        may wait. Cancelled: nothing is lost; it goes on being sent.

        :raises anyio.BrokenResourceError: the channel was lost, or closed, and what waited with it.
        """
        outbox = self._outbox
        await self._waker.checkpoint()
        while outbox is not None and not outbox.push():
            if not self.channel.spin():
                await outbox.wait(self._waker.new_waiter())
        if outbox is not None:
            outbox.check()

    def _drop_waiting(self) -> None:
        if self._outbox is not None and self._outbox.nbytes:
            self._outbox.drop(ClosedResourceError("this end was closed"))

    def __repr__(self) -> str:
        local, remote = show(self.local_address), show(self.remote_address)
        return f"<{type(self).__name__} {self.path} {local} - {remote}>"


@uninterrupted
async def channel_of(result: NegotiationResult, kind: int, config: Config) -> ConnectedChannel:
    """The channel of a connection whose path is agreed on. Owns the connection, also when this raises.

    :raises NegotiationError: on TCP, the peer does not speak this kind of channel, or sends nothing.
    """
    channel: Channel = result.pipe
    if result.pipe is None:
        channel = await _greeted(result.tcp_pipe(), kind, config)
    return ConnectedChannel(
        channel,
        local_address=result.local_address,
        remote_address=result.remote_address,
        fallback_reason=result.fallback,
        tls=result.session,
    )


async def _greeted(pipe: TcpPipe, kind: int, config: Config) -> TcpChannel:
    """Wait for the peer's greeting. (On RDMA the negotiation has agreed on all that.)"""
    channel = TcpChannel(pipe, kind=kind, max_message_bytes=config.max_message_bytes)
    try:
        waker = wake.current()
        waiter = waker.new_waiter()
        channel.on_greeted = waiter.set
        deadline = waker.now() + config.negotiate_timeout_ms / 1000
        while not channel.greeted and channel.error is None:
            if not await waiter.wait_until(deadline):
                raise NegotiationError(Code.PLAIN_TCP_PEER, "it did not greet as a message channel in time")
        if channel.error is not None:
            raise NegotiationError(Code.PLAIN_TCP_PEER, str(channel.error)) from channel.error
        channel.on_greeted = None
    except BaseException:
        channel.abort()
        raise
    return channel


@documented_by(ConnectOptions.of)
@uninterrupted
async def connect(
    host: str, port: int, *, kind: int = Kind.CALLS, **keywords: Unpack[ConnectKeywords]
) -> ConnectedChannel:
    """Connect a channel to a server. Path, fallback and TLS as in :func:`aiordma.connect`.

    :param kind: what the messages mean; the server's listener must be of the same kind.
    :raises OSError: no TCP connection could be made.
    :raises aiordma.NegotiationError: (an ``OSError``, too) the server does not serve this kind of
        connection, or RDMA is demanded and cannot be used; ``code`` and ``text`` give the reason.
    """
    options = ConnectOptions.of(host, **keywords)
    recorder.install(options.config)
    result = await connect_and_negotiate(host, port, options, kind)
    connected = await channel_of(result, kind, options.config)
    peer_cache.announce("server", f"{host}:{port}", result.path, result.fallback)
    return connected


_unclosed = Draining[ConnectedChannel](
    ConnectedChannel._end_parting, ConnectedChannel._push_out, UNCLOSED_SECONDS
)


class ChannelListener(ConnectionListener[ConnectedChannel]):
    """A listener for channels. Made by :func:`listen`. A client of another kind is turned away."""

    kind = Kind.CALLS

    async def _make(self, result: NegotiationResult) -> ConnectedChannel:
        return await channel_of(result, self.kind, self._options.config)


@documented_by(ListenOptions.of)
async def listen(
    host: str | Sequence[str] | None = None, port: int = 0, **keywords: Unpack[ListenKeywords]
) -> ChannelListener:
    """Listen for channels of calls. Parameters and errors as in :func:`aiordma.listen`."""
    options = ListenOptions.of(**keywords)
    recorder.install(options.config)  # without RDMA there is no engine that does it
    return await open_listener(ChannelListener, host, port, options)
