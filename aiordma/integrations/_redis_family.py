"""What the adapters of redis-py and of valkey-py, which began as a copy of it, have in common."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ..compat.connection import open_connection
from ..compat.streams import ring_streams
from ..valkey.connect import DEFAULT_BUFFER_BYTES, connect_pipe

if TYPE_CHECKING:
    from ..config import Config, Mode

__all__ = ["NegotiatedConnection", "OwnProtocolConnection", "open_valkey", "read_url"]

_NEGOTIATED, _OWN = "rdma", "valkey+rdma"
#: As asyncio's.
_LIMIT = 65536


class NegotiatedConnection:
    """Mixed into the library's ``Connection``: RDMA with aiordma at the other end, TCP with others."""

    socket_connect_timeout: float | None
    _connection_arguments: Any

    def __init__(
        self, *args: Any, config: Config | None = None, mode: Mode | None = None, **options: Any
    ) -> None:
        """`config`, `mode`: as of :func:`aiordma.open_connection`. The rest: see the library."""
        super().__init__(*args, **options)
        self._ours: dict[str, Any] = {"config": config, "mode": mode}

    async def _connect(self) -> None:
        # As the library's own, less the options of the TCP socket, which carries no data.
        async with asyncio.timeout(self.socket_connect_timeout):
            self._reader, self._writer = await open_connection(**self._connection_arguments(), **self._ours)


async def open_valkey(
    host: str, port: int, config: Config | None, buffer_bytes: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """asyncio's reader and writer on a stream of :func:`aiordma.valkey.connect`, which see."""
    connection, local, remote = await connect_pipe(host, port, config, buffer_bytes)
    return ring_streams(connection.pipe, _LIMIT, {"peername": remote, "sockname": local})


class OwnProtocolConnection:
    """Mixed into the library's ``Connection``: Valkey's own RDMA protocol, to an unmodified valkey-server."""

    host: str
    port: int
    socket_connect_timeout: float | None

    def __init__(
        self,
        *args: Any,
        config: Config | None = None,
        buffer_bytes: int | str = DEFAULT_BUFFER_BYTES,
        **options: Any,
    ) -> None:
        """`config`, `buffer_bytes`: as of :func:`aiordma.valkey.connect`. The rest: see the library."""
        super().__init__(*args, **options)
        self._config, self._buffer_bytes = config, int(buffer_bytes)

    async def _connect(self) -> None:
        async with asyncio.timeout(self.socket_connect_timeout):
            self._reader, self._writer = await open_valkey(
                self.host, self.port, self._config, self._buffer_bytes
            )


def read_url(url: str, plain: str) -> tuple[str, bool]:
    """The URL as the library knows it, and whether it asks for Valkey's own protocol.

    :param plain: the library's scheme.
    :raises ValueError: another scheme.
    """
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in (_NEGOTIATED, _OWN):
        raise ValueError(
            f"{url.partition(':')[0]!r} is no scheme for RDMA: the URL must begin with {_NEGOTIATED}:// "
            f"(aiordma is at the other end, too) or {_OWN}:// (a valkey-server with --rdma-port)"
        )
    return f"{plain}://{rest}", scheme == _OWN
