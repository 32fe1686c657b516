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

from .. import wake
from ..addresses import show
from ..errors import Code, NegotiationError
from ..negotiation import peer_cache
from ..negotiation.accept import ConnectionListener, open_listener
from ..negotiation.connect import connect_and_negotiate
from ..negotiation.options import ConnectOptions, ListenOptions, documented_by
from ..observe.trace import recorder
from ..pipes.tcp_channel import TcpChannel
from ..proto.clc import Kind
from ..proto.message import MAX_HEAD_BYTES, ChannelStatistics
from ..wake.ending import release_unclosed
from ..wake.origin import here

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from ssl import SSLObject
    from typing import Unpack

    from ..addresses import Address
    from ..config import Config
    from ..errors import FallbackReason
    from ..negotiation.options import ConnectKeywords, ListenKeywords
    from ..negotiation.result import NegotiationResult
    from ..pipes.contracts import Channel
    from ..pipes.tcp import TcpPipe

__all__ = [
    "MAX_HEAD_BYTES",
    "ChannelListener",
    "ChannelStatistics",
    "ConnectedChannel",
    "Kind",
    "connect",
    "listen",
]


class ConnectedChannel(anyio.abc.AsyncResource):
    """A channel whose path is agreed on, and what is known of its peer. Closing it closes the channel in
    order; one that is dropped without that gives a ``ResourceWarning``, and the channel is closed, unless
    :meth:`detach` was called.
    """

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

    def detach(self) -> Channel:
        """The channel, which this object does not close any more when it is dropped."""
        self._owns = False
        return self.channel

    def loop_ended(self) -> None:
        """See :class:`aiordma.wake.base.LoopBound`."""
        if self._owns and self.channel.path == "tcp":  # the engine ends what runs on RDMA
            self.channel.close()

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        if getattr(self, "_owns", False):
            release_unclosed(self, self._waker, self.channel.close, _warn)

    async def aclose(self) -> None:
        self._owns = False
        self.channel.close()
        await wake.current().checkpoint()

    def abort(self) -> None:
        """Drop the connection now: the peer gets an error. Waits for nothing; idempotent."""
        self._owns = False
        self.channel.abort()

    def __repr__(self) -> str:
        local, remote = show(self.local_address), show(self.remote_address)
        return f"<{type(self).__name__} {self.path} {local} - {remote}>"


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
