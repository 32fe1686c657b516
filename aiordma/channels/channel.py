"""Message channels: whole messages between two ends, in order, without waiting.

What calls and other users of messages are built on. A channel never blocks: :meth:`Channel.try_send` takes
a message whole or not at all, and everything that arrives comes by callback. Waiting is the business of the
layer above. One contract, three carriers: a link (``_channel.pyx``), a TCP connection (``message_tcp.py``),
and memory, for tests (``testing/channel.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio.abc

from .. import wake
from ..config import Config
from ..errors import Code, NegotiationError
from ..negotiation import driver as negotiate
from ..negotiation import peer_cache as peers
from ..negotiation.accept import ConnectionListener, open_listener
from ..observe.trace import recorder
from ..pipes.tcp_channel import TcpChannel
from ..proto.clc import Kind
from ..proto.message import MAX_HEAD_BYTES, ChannelStatistics

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ssl import SSLContext, SSLObject

    from ..addresses import Address
    from ..config import Mode
    from ..errors import FallbackReason
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
    order.
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

    async def aclose(self) -> None:
        self.channel.close()
        await wake.current().checkpoint()


async def channel_of(outcome: negotiate.Outcome, kind: int, config: Config) -> ConnectedChannel:
    """The channel of a connection whose path is agreed on. Owns the connection, also when this raises.

    :raises NegotiationError: on TCP, the peer does not speak this kind of channel, or says nothing.
    """
    channel: Channel = outcome.pipe
    if outcome.pipe is None:
        channel = await _greeted(outcome.tcp_pipe(), kind, config)
    return ConnectedChannel(
        channel,
        local_address=outcome.local_address,
        remote_address=outcome.remote_address,
        fallback_reason=outcome.fallback,
        tls=outcome.session,
    )


async def _greeted(pipe: TcpPipe, kind: int, config: Config) -> TcpChannel:
    """Wait for the peer's greeting. (On RDMA the negotiation has said all that.)"""
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


async def connect(
    host: str,
    port: int,
    *,
    kind: int = Kind.CALLS,
    config: Config | None = None,
    mode: Mode | None = None,
    local_host: str | None = None,
    ssl: SSLContext | bool | None = None,
    server_hostname: str | None = None,
    rdma_outside_tls: bool = False,
) -> ConnectedChannel:
    """Connect a channel to a server. Path, fallback and TLS as in :func:`aiordma.connect`.

    :param kind: what the messages mean; the server must mean the same.
    :raises OSError: no TCP connection could be made.
    :raises aiordma.NegotiationError: (an ``OSError``, too) the server is not one for this kind of
        connection, or RDMA is demanded and not to be had; ``code`` and ``text`` say why.
    """
    config = config or Config.from_env()
    recorder.install(config)
    tls = negotiate.Tls.of_client(ssl, server_hostname or host, rdma_outside_tls)
    outcome = await negotiate.client(
        host, port, config=config, mode=mode, local_host=local_host, tls=tls, kind=kind
    )
    connected = await channel_of(outcome, kind, config)
    peers.announce("server", f"{host}:{port}", outcome.path, outcome.fallback)
    return connected


class ChannelListener(ConnectionListener[ConnectedChannel]):
    """A listener for channels. Made by :func:`listen`. A client that means something else is turned away."""

    kind = Kind.CALLS

    async def _make(self, outcome: negotiate.Outcome) -> ConnectedChannel:
        return await channel_of(outcome, self.kind, self._config)


async def listen(
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
) -> ChannelListener:
    """Listen for channels of calls. Parameters and errors as in :func:`aiordma.listen`."""
    config = config or Config.from_env()
    recorder.install(config)  # there may be no engine that does it
    return await open_listener(
        ChannelListener,
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
