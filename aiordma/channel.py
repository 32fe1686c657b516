"""Message channels: whole messages between two ends, in order, without waiting.

What calls and other users of messages are built on. A channel never blocks: :meth:`Channel.try_send` takes
a message whole or not at all, and everything that arrives comes by callback. Waiting is the business of the
layer above. One contract, three carriers: a link (``_channel.pyx``), a TCP connection (``message_tcp.py``),
and memory, for tests (``testing/channel.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import anyio.abc

from . import negotiate, peers, wake
from .config import Config
from .errors import Code, NegotiationError
from .listener import ConnectionListener, open_listener
from .message_tcp import TcpChannel
from .observe.trace import recorder
from .proto.clc import Kind
from .proto.message import MAX_HEAD_BYTES, ChannelStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from ssl import SSLContext, SSLObject

    from typing_extensions import Buffer

    from .attributes import Address
    from .config import Mode
    from .errors import FallbackReason
    from .tcp import TcpPipe

__all__ = [
    "MAX_HEAD_BYTES",
    "Channel",
    "ChannelListener",
    "ChannelStatistics",
    "ConnectedChannel",
    "Kind",
    "Message",
    "connect",
    "listen",
]

Message = bytes | memoryview
"""A received message. Short ones are ``bytes``. Long ones are a read-only ``memoryview`` of a received
block, which goes back to its pool when the last view of it is gone."""


class Channel(Protocol):
    """One end of a connection that carries messages. Belongs to one event loop, and is used in its thread
    only.
    """

    path: str
    """``"rdma"``, ``"tcp"``, or ``"memory"`` in tests."""
    max_message_bytes: int
    """Longest message, head and body together (``Config.max_message_bytes``). A longer one from the peer
    breaks the channel."""
    on_message: Callable[[Message], None] | None
    """Called with every message, in order, and never from inside :meth:`try_send`. What arrives while it is
    None waits (up to ``Config.channel_receive_bytes``; then the peer has to). An exception in it breaks the
    channel."""
    on_writable: Callable[[], None] | None
    """Called when, after :meth:`try_send` returned False, it is worth trying again."""
    on_closed: Callable[[BaseException | None], None] | None
    """Called once, after the last message: with None when the peer closed in order, else with
    :attr:`error`. Not called after this end's own :meth:`close` or :meth:`abort`."""

    @property
    def error(self) -> BaseException | None:
        """Why the channel broke; None while it has not, and when it was closed in order."""

    def try_send(self, head: bytes, body: Buffer = b"") -> bool:
        """Send ``head + body`` as one message: all of it, or nothing. False: no credit, room or memory now.

        The bytes are taken with the call: a mutable ``body`` may be changed when it returns. (An immutable
        one may be kept by reference until the peer has it.)

        :param head: at most ``MAX_HEAD_BYTES``.
        :raises ValueError: ``head`` or the whole is too long.
        :raises MemoryError: the engine's memory could never hold it (``Config.memory_limit_bytes``).
        :raises anyio.ClosedResourceError: this end was closed.
        :raises anyio.BrokenResourceError: the channel broke (the reason is its cause), or the peer has
            closed it.
        """

    def spin(self) -> bool:
        """Look for messages, and where the policy allows it now, go on looking for a short while. True when
        at least one message of this channel was handed to :attr:`on_message`, or the channel ended. For an
        operation that would otherwise wait."""

    def close(self) -> None:
        """End in order: what was sent still arrives. Messages that come from now on are dropped.
        Idempotent.
        """

    def abort(self) -> None:
        """End at once: the peer's :attr:`on_closed` gets an error. Idempotent, and also a way to cut a
        :meth:`close` short."""

    def statistics(self) -> ChannelStatistics:
        """What happened so far."""


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
