"""valkey-py on asyncio: connections by RDMA, and URLs for them. As ``aiordma.integrations.redis``.

::

    client = from_url("valkey+rdma://cache:6380/0")     # an unmodified valkey-server with --rdma-port 6380
    await client.set("key", "value")
"""

from __future__ import annotations

from typing import Any

from ._redis_family import NegotiatedConnection, OwnProtocolConnection, read_url
from ._versions import check_version, unusable

try:
    from valkey.asyncio import Connection, ConnectionPool, Valkey
except ImportError as error:
    raise unusable("valkey") from error

check_version("valkey")

__all__ = ["RdmaConnection", "ValkeyRdmaConnection", "from_url"]


class RdmaConnection(NegotiatedConnection, Connection):  # type: ignore[misc]
    """``valkey.asyncio.Connection`` over RDMA, with TCP to servers without aiordma."""


class ValkeyRdmaConnection(OwnProtocolConnection, Connection):  # type: ignore[misc]
    """``valkey.asyncio.Connection`` by Valkey's own RDMA protocol. There is no TCP to fall back on."""


def from_url(url: str, **options: Any) -> Valkey:
    """A client of the server at ``valkey+rdma://[[username]:password@]host[:port][/database]``, or the same
    with ``rdma://``.

    :param options: those of valkey-py's ``from_url()``; `config` and `buffer_bytes` of
        :func:`aiordma.valkey.connect`, with ``rdma://`` `config` and `mode` of
        :func:`aiordma.open_connection`.
    :raises ValueError: it is no such URL.
    """
    plain, own = read_url(url, "valkey")
    kind = ValkeyRdmaConnection if own else RdmaConnection
    return Valkey.from_pool(ConnectionPool.from_url(plain, connection_class=kind, **options))
