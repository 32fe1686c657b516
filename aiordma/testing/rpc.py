"""A client and a server in one program, without a network: to test services, and what calls them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ..rpc.client import Client
from ..rpc.connection import Connection
from ..rpc.server import Server
from .channel import MemoryChannel, memory_channels

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from ..rpc.interceptor import ClientInterceptor
    from ..rpc.service import Service

__all__ = ["RpcPair", "rpc_pair"]


class RpcPair:
    """A client, its server, and the two ends of the channel between them (to break it, for example)."""

    def __init__(
        self, client: Client, server: Server, client_end: MemoryChannel, server_end: MemoryChannel
    ) -> None:
        self.client = client
        self.server = server
        self.client_end = client_end
        self.server_end = server_end


@asynccontextmanager
async def rpc_pair(
    services: Service | Iterable[Service],
    *,
    client_interceptors: Iterable[ClientInterceptor] = (),
    client_window: int = 262144,
    channel: dict[str, Any] | None = None,
    **server: Any,
) -> AsyncIterator[RpcPair]:
    """Serve ``services`` to one client.

    :param channel: parameters of :func:`~aiordma.testing.channel.memory_channels`.
    :param server: parameters of :class:`~aiordma.rpc.Server`.
    """
    client_end, server_end = memory_channels(**(channel or {}))
    answering = Server(services, **server)
    try:
        answering.attach(server_end, "client")
        connection = await Connection.open(client_end, "server", window=client_window)
        try:
            yield RpcPair(
                Client(connection, interceptors=client_interceptors), answering, client_end, server_end
            )
        finally:
            connection.close()
    finally:
        await answering.aclose(0.0)
