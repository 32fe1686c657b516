"""nats-py: a client whose connections negotiate RDMA.

::

    client = await connect("nats://broker:4222")
    await client.publish("subject", b"payload")

nats-server itself does not negotiate: the other end is a server or a proxy on aiordma. A plain nats-server is
served by TCP, and logs a parser error for the first connection of a process.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ..compat.connection import open_connection
from ..compat.upgrade import start_tls
from ._versions import check_version, unusable

try:
    from nats.aio.client import Client
    from nats.aio.transport import TcpTransport
except ImportError as error:
    raise unusable("nats-py") from error

if TYPE_CHECKING:
    import ssl
    from urllib.parse import ParseResult

    from ..config import Config, Mode

check_version("nats-py")

__all__ = ["RdmaClient", "RdmaTransport", "connect"]


class RdmaTransport(TcpTransport):  # type: ignore[misc]
    """The transport of nats-py, by RDMA or TCP."""

    def __init__(self, config: Config | None = None, mode: Mode | None = None) -> None:
        super().__init__()
        self._ours: dict[str, Any] = {"config": config, "mode": mode}

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        """See nats-py. `connect_timeout`: seconds."""
        async with asyncio.timeout(connect_timeout):
            self._io_reader, self._io_writer = await open_connection(
                uri.hostname, uri.port, limit=buffer_size, **self._ours
            )
        self._bare_io_reader, self._bare_io_writer = self._io_reader, self._io_writer

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: int,
    ) -> None:
        """TLS, which travels by the path that the connection has."""
        reader = asyncio.StreamReader(limit=buffer_size)
        protocol = asyncio.StreamReaderProtocol(reader)
        name = uri if isinstance(uri, str) else uri.hostname
        async with asyncio.timeout(connect_timeout):
            inside: Any = await start_tls(
                self._io_writer.transport, protocol, ssl_context, server_hostname=name
            )
        self._io_reader = reader
        self._io_writer = asyncio.StreamWriter(inside, protocol, reader, asyncio.get_running_loop())


class RdmaClient(Client):  # type: ignore[misc]
    """``nats.aio.client.Client`` over RDMA, with TCP for everybody else. WebSockets stay what they are."""

    def __init__(self, *, config: Config | None = None, mode: Mode | None = None) -> None:
        """`config`, `mode`: as of :func:`aiordma.open_connection`."""
        self._ours: dict[str, Any] = {"config": config, "mode": mode}
        super().__init__()

    @property
    def _transport(self) -> Any:
        return self.__dict__["_transport"]

    @_transport.setter
    def _transport(self, transport: Any) -> None:
        # nats-py makes its transport itself, anew for each server that it tries.
        self.__dict__["_transport"] = (
            RdmaTransport(**self._ours) if type(transport) is TcpTransport else transport
        )


async def connect(
    servers: str | list[str] = "nats://localhost:4222",
    *,
    config: Config | None = None,
    mode: Mode | None = None,
    **options: Any,
) -> RdmaClient:
    """``nats.connect()`` over RDMA. `options`: those of nats-py.

    :raises nats.errors.NoServersError: none of the servers can be reached.
    """
    client = RdmaClient(config=config, mode=mode)
    await client.connect(servers, **options)
    return client
