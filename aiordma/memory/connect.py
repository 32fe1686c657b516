"""Connecting for memory: :func:`connect` and :func:`serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from ..channels.channel import ChannelListener
from ..channels.channel import connect as connect_channel
from ..negotiation.accept import open_listener
from ..negotiation.block import block
from ..negotiation.opening import opening
from ..negotiation.options import ConnectOptions, ListenOptions, documented_by
from ..observe.trace import recorder
from ..proto.clc import Kind
from ..wake.escaping import ENDS_PROGRAM, is_cancellation
from ..wake.interrupts import uninterrupted
from .peer import Peer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from typing import Unpack

    from ..channels.channel import ConnectedChannel
    from ..negotiation.options import ConnectKeywords, ListenKeywords


@documented_by(ConnectOptions.of)
@opening
async def connect(host: str, port: int, **keywords: Unpack[ConnectKeywords]) -> Peer:
    """Connect to a server of memory (:func:`serve`): ``async with memory.connect(host, port) as peer: ...``,
    or ``await`` it and close it yourself. Path, fallback and TLS as in :func:`aiordma.connect`.

    :raises OSError: no TCP connection could be made.
    :raises aiordma.NegotiationError: (an ``OSError``, too) the server does not serve memory, or RDMA is
        demanded and cannot be used.
    """
    return Peer(await connect_channel(host, port, kind=Kind.MEMORY, **keywords))


class _Listener(ChannelListener):
    kind = Kind.MEMORY


@uninterrupted
class Server:
    """What :func:`serve` listens with."""

    def __init__(self, listener: ChannelListener, on_peer: Callable[[Peer], Awaitable[None]] | None) -> None:
        self._listener, self._on_peer = listener, on_peer
        self.peers: set[Peer] = set()
        """Clients that are connected."""

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) that it listens on."""
        return self._listener.addresses[0]

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self.address[1]

    async def _serve(self, connected: ConnectedChannel) -> None:
        peer = Peer(connected)
        self.peers.add(peer)
        try:
            if self._on_peer is not None:
                await self._call(self._on_peer, peer)
            await peer.wait_closed()
        finally:
            self.peers.discard(peer)
            with anyio.CancelScope(shield=True):
                await peer.aclose()

    @staticmethod
    async def _call(on_peer: Callable[[Peer], Awaitable[None]], peer: Peer) -> None:
        try:
            await on_peer(peer)
        except (Exception, GeneratorExit, *ENDS_PROGRAM):
            raise
        except BaseException as error:
            if is_cancellation(error):
                raise
            # As it is, it would end the listener, which no task waits for: no client would be served then.
            raise RuntimeError(f"on_peer has raised {type(error).__name__}") from error


@block
@documented_by(ListenOptions.of)
async def serve(
    host: str | Sequence[str] | None = None,
    port: int = 0,
    *,
    on_peer: Callable[[Peer], Awaitable[None]] | None = None,
    **keywords: Unpack[ListenKeywords],
) -> AsyncIterator[Server]:
    """Let clients connect that use this event loop's regions: ``async with memory.serve(host) as server``.

    At the end of the block clients lose their access, and connections are closed.

    :param on_peer: called for each client, in a task of its own; for example to take its notifications, or
        to open its memory. The connection stays when it returns. What it raises is logged, and
        ends the connection; ``KeyboardInterrupt`` and ``SystemExit`` pass through.
    """
    options = ListenOptions.of(**keywords)
    recorder.install(options.config)
    async with await open_listener(_Listener, host, port, options) as listener:
        server = Server(listener, on_peer)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, server._serve)
            try:
                yield server
            finally:
                tasks.cancel_scope.cancel()
