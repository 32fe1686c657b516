"""``await aiordma.listen(host, port)``: streams from clients, RDMA ones and plain ones, on one port."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..negotiation.accept import ConnectionListener, open_listener
from .connector import stream_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ssl import SSLContext

    from ..config import Config, Mode
    from ..negotiation.result import Outcome
    from .stream import RdmaStream

__all__ = ["RdmaListener", "listen"]


class RdmaListener(ConnectionListener["RdmaStream"]):
    """A listener for streams. Made by :func:`listen`."""

    async def _make(self, outcome: Outcome) -> RdmaStream:
        return stream_of(outcome)


async def listen(
    host: str | Sequence[str] | None = None,
    port: int = 0,
    *,
    config: Config | None = None,
    mode: Mode | None = None,
    backlog: int = 1024,
    reuse_address: bool = True,
    reuse_port: bool = False,
    max_negotiations: int = 1024,
    max_pending: int = 4096,
    ssl: SSLContext | None = None,
    rdma_outside_tls: bool = False,
) -> RdmaListener:
    """Listen for streams, from aiordma clients over RDMA and from everybody else over TCP, on the same port.

    :param host: name or address, or several; None or ``""``: every interface, IPv4 and IPv6.
    :param port: 0: any free one, the same on all addresses (``listener.port``).
    :param config: settings; default: ``Config.from_env()``.
    :param mode: as in :func:`aiordma.connect`; ``"rdma"`` turns plain clients away.
    :param backlog: connections that the kernel keeps until they are accepted.
    :param max_negotiations: beyond so many at a time, clients get TCP without waiting.
    :param max_pending: beyond so many connections that are not streams yet, or that nobody took, the rest
        waits in the kernel.
    :param ssl: TLS on every connection: a server's context. See :func:`aiordma.connect`.
    :param rdma_outside_tls: as in :func:`aiordma.connect`.
    :raises OSError: the address cannot be listened on, naming it.
    """
    return await open_listener(
        RdmaListener,
        host,
        port,
        config=config,
        mode=mode,
        backlog=backlog,
        reuse_address=reuse_address,
        reuse_port=reuse_port,
        max_negotiations=max_negotiations,
        max_pending=max_pending,
        ssl=ssl,
        rdma_outside_tls=rdma_outside_tls,
        tickets=True,
    )
