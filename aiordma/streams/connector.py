"""``await aiordma.connect(host, port)``: a stream to a server, over RDMA where both ends can."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..config import Config
from ..negotiation import driver as negotiate
from ..negotiation import peer_cache as peers
from .stream import RdmaStream

if TYPE_CHECKING:
    from ssl import SSLContext

    from ..config import Mode

__all__ = ["connect", "stream_of"]


async def connect(
    host: str,
    port: int,
    *,
    config: Config | None = None,
    mode: Mode | None = None,
    local_host: str | None = None,
    ssl: SSLContext | bool | None = None,
    server_hostname: str | None = None,
    rdma_outside_tls: bool = False,
) -> RdmaStream:
    """Connect to a server.

    The connection begins on TCP. If the server is an aiordma one, and both ends can use RDMA, the stream runs
    over RDMA; otherwise over TCP, and ``stream.fallback_reason`` says why.

    :param config: settings; default: ``Config.from_env()``.
    :param mode: ``"auto"``, ``"rdma"`` (fail with the reason instead of falling back) or ``"tcp"`` (never
        RDMA); default: the one of ``config``.
    :param local_host: address to connect from.
    :param ssl: TLS on the connection: a client's context, or True for the default one (which checks the
        server's certificate). The negotiation, with the keys to this process's memory, goes through TLS, and
        so does the payload, on TCP: RDMA cannot be covered by it.
    :param server_hostname: the name in the server's certificate; default: ``host``.
    :param rdma_outside_tls: send payload by RDMA, unencrypted, after a negotiation inside TLS that has proved
        who the ends are. Both ends must allow it. (Or run TLS over an RDMA stream: anyio's ``TLSStream``.)
    :raises OSError: no TCP connection could be made (``ConnectionRefusedError`` ...), naming each address.
    :raises aiordma.NegotiationError: (an ``OSError``, too) RDMA is demanded and not to be had, or the
        negotiation broke off half-way; ``code`` and ``text`` say why.
    """
    tls = negotiate.Tls.of_client(ssl, server_hostname or host, rdma_outside_tls)
    outcome = await negotiate.client(
        host, port, config=config or Config.from_env(), mode=mode, local_host=local_host, tls=tls
    )
    peers.announce("server", f"{host}:{port}", outcome.path, outcome.fallback)
    return stream_of(outcome)


def stream_of(outcome: negotiate.Outcome) -> RdmaStream:
    """The stream of a connection whose path is agreed on."""
    return RdmaStream(
        outcome.pipe if outcome.pipe is not None else outcome.tcp_pipe(),
        local_address=outcome.local_address,
        remote_address=outcome.remote_address,
        fallback_reason=outcome.fallback,
        tls=outcome.session,
    )
