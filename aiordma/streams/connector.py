"""``async with aiordma.connect(host, port)``: a stream to a server, over RDMA where both ends can."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..negotiation import peer_cache
from ..negotiation.connect import connect_and_negotiate
from ..negotiation.opening import opening
from ..negotiation.options import ConnectOptions, documented_by
from .stream import RdmaStream

if TYPE_CHECKING:
    from typing import Unpack

    from ..negotiation.dialogue import NegotiationResult
    from ..negotiation.options import ConnectKeywords


@documented_by(ConnectOptions.of)
@opening
async def connect(host: str, port: int, **keywords: Unpack[ConnectKeywords]) -> RdmaStream:
    """Connect to a server: ``async with connect(host, port) as stream: ...``, or ``await`` it and close the
    stream yourself.

    The connection begins on TCP. If the server is an aiordma one, and both ends can use RDMA, the stream runs
    over RDMA; otherwise over TCP, and ``stream.fallback_reason`` gives the reason.

    :param config: settings; default: ``Config.from_env()``.
    :param mode: ``"auto"``, ``"rdma"`` (fail with the reason instead of falling back) or ``"tcp"`` (never
        RDMA); default: the one of ``config``.
    :param local_host: address to connect from.
    :param ssl: TLS on the connection: a client's context, or True for the default one (which checks the
        server's certificate). The negotiation, with the keys to this process's memory, goes through TLS. So
        does the payload on TCP; TLS cannot cover RDMA.
    :param server_hostname: the name in the server's certificate; default: ``host``.
    :param rdma_outside_tls: send payload by RDMA, unencrypted, after a negotiation inside TLS that has proved
        who the ends are. Both ends must allow it. (Or run TLS over an RDMA stream: anyio's ``TLSStream``.)
    :raises OSError: no TCP connection could be made (``ConnectionRefusedError`` ...), naming each address.
    :raises aiordma.NegotiationError: (an ``OSError``, too) RDMA is demanded and cannot be used, or the
        negotiation broke off half-way; ``code`` and ``text`` give the reason.
    :raises ValueError: a parameter has no valid value.
    """
    result = await connect_and_negotiate(host, port, ConnectOptions.of(host, **keywords))
    peer_cache.announce("server", f"{host}:{port}", result.path, result.fallback)
    return stream_of(result)


def stream_of(result: NegotiationResult) -> RdmaStream:
    """The stream of a connection whose path is agreed on."""
    stream = RdmaStream(
        result.pipe if result.pipe is not None else result.tcp_pipe(),
        local_address=result.local_address,
        remote_address=result.remote_address,
        fallback_reason=result.fallback,
        tls=result.session,
    )
    stream.smc_peer = result.smc_peer
    return stream
