"""redis-py on asyncio: connections by RDMA, and URLs for them.

::

    client = from_url("rdma://cache:6379/0")            # aiordma is at the other end; TCP where it is not
    client = from_url("valkey+rdma://cache:6380/0")     # an unmodified valkey-server with --rdma-port 6380
    await client.set("key", "value")

For pools of your own: ``ConnectionPool(connection_class=RdmaConnection, ...)``, or ``ValkeyRdmaConnection``.
"""

from __future__ import annotations

from typing import Any

from ._redis_family import NegotiatedConnection, OwnProtocolConnection, read_url
from ._versions import check_version, unusable

try:
    from redis.asyncio import Connection, ConnectionPool, Redis
except ImportError as error:
    raise unusable("redis") from error

check_version("redis")

__all__ = ["RdmaConnection", "ValkeyRdmaConnection", "from_url"]


class RdmaConnection(NegotiatedConnection, Connection):  # type: ignore[misc]
    """``redis.asyncio.Connection`` over RDMA, with TCP to servers without aiordma."""


class ValkeyRdmaConnection(OwnProtocolConnection, Connection):  # type: ignore[misc]
    """``redis.asyncio.Connection`` by Valkey's own RDMA protocol. There is no TCP to fall back on."""


def from_url(url: str, **options: Any) -> Redis:
    """A client of the server at ``rdma://[[username]:password@]host[:port][/database]``, or the same with
    ``valkey+rdma://``.

    :param options: those of redis-py's ``from_url()``; `config` and `mode` of
        :func:`aiordma.open_connection`, with ``valkey+rdma://`` `config` and `buffer_bytes` of
        :func:`aiordma.valkey.connect`.
    :raises ValueError: it is no such URL.
    """
    plain, own = read_url(url, "redis")
    kind = ValkeyRdmaConnection if own else RdmaConnection
    return Redis.from_pool(ConnectionPool.from_url(plain, connection_class=kind, **options))
