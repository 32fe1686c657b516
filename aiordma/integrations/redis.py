"""redis-py on asyncio: connections that negotiate RDMA, and ``rdma://`` URLs.

::

    client = from_url("rdma://cache:6379/0")
    await client.set("key", "value")

For pools of your own: ``ConnectionPool(connection_class=RdmaConnection, ...)``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from redis.asyncio import Connection, ConnectionPool, Redis

from ..compat.connection import open_connection

if TYPE_CHECKING:
    from ..config import Config, Mode

__all__ = ["RdmaConnection", "from_url"]

_SCHEME = "rdma://"


class RdmaConnection(Connection):  # type: ignore[misc]
    """``redis.asyncio.Connection`` over RDMA, with TCP to servers without aiordma."""

    def __init__(
        self, *args: Any, config: Config | None = None, mode: Mode | None = None, **options: Any
    ) -> None:
        """`config`, `mode`: as of :func:`aiordma.open_connection`. The rest: see redis-py."""
        super().__init__(*args, **options)
        self._ours: dict[str, Any] = {"config": config, "mode": mode}

    async def _connect(self) -> None:
        # As redis-py's own, less the options of the TCP socket, which carries no data.
        async with asyncio.timeout(self.socket_connect_timeout):
            self._reader, self._writer = await open_connection(**self._connection_arguments(), **self._ours)


def from_url(url: str, **options: Any) -> Redis:
    """A client of the server at ``rdma://[[username]:password@]host[:port][/database]``.

    :param options: those of redis-py's ``from_url()``, and `config` and `mode` of
        :func:`aiordma.open_connection`.
    :raises ValueError: it is no such URL.
    """
    if not url.startswith(_SCHEME):
        raise ValueError(
            f"{url.partition(':')[0]!r} is no scheme for RDMA: the URL must begin with {_SCHEME}"
        )
    pool = ConnectionPool.from_url(
        "redis://" + url.removeprefix(_SCHEME), connection_class=RdmaConnection, **options
    )
    return Redis.from_pool(pool)
