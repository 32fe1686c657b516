"""``await aiordma.connect(host, port)``: a stream to a server, over RDMA where both ends can."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import negotiate, peers
from .config import Config
from .stream import RdmaStream
from .tcp import TcpPipe

if TYPE_CHECKING:
    from .config import Mode

__all__ = ["connect", "stream_of"]


async def connect(
    host: str,
    port: int,
    *,
    config: Config | None = None,
    mode: Mode | None = None,
    local_host: str | None = None,
) -> RdmaStream:
    """Connect to a server.

    The connection begins on TCP. If the server is an aiordma one, and both ends can use RDMA, the stream runs
    over RDMA; otherwise over TCP, and ``stream.fallback_reason`` says why.

    :param config: settings; default: ``Config.from_env()``.
    :param mode: ``"auto"``, ``"rdma"`` (fail with the reason instead of falling back) or ``"tcp"`` (never
        RDMA); default: the one of ``config``.
    :param local_host: address to connect from.
    :raises OSError: no TCP connection could be made (``ConnectionRefusedError`` ...), naming each address.
    :raises aiordma.NegotiationError: (an ``OSError``, too) RDMA is demanded and not to be had, or the
        negotiation broke off half-way; ``code`` and ``text`` say why.
    """
    outcome = await negotiate.client(
        host, port, config=config or Config.from_env(), mode=mode, local_host=local_host
    )
    peers.announce("server", f"{host}:{port}", "RDMA" if outcome.pipe else "TCP", outcome.fallback)
    return stream_of(outcome)


def stream_of(outcome: negotiate.Outcome) -> RdmaStream:
    """The stream of a connection whose path is agreed on."""
    pipe = outcome.pipe
    if pipe is None:
        pipe = TcpPipe(outcome.sock, late_proposal=outcome.silent)
    return RdmaStream(
        pipe,
        local_address=outcome.local_address,
        remote_address=outcome.remote_address,
        fallback_reason=outcome.fallback,
    )
