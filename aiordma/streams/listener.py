"""``async with aiordma.listen(host, port)``: streams from clients, RDMA ones and plain ones, on one port."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..negotiation.accept import ConnectionListener, open_listener
from ..negotiation.opening import opening
from ..negotiation.options import ListenOptions, documented_by
from .connector import stream_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from ..negotiation.dialogue import NegotiationResult
    from ..negotiation.options import ListenKeywords
    from .stream import RdmaStream


class RdmaListener(ConnectionListener["RdmaStream"]):
    """A listener for streams. Made by :func:`listen`."""

    async def _make(self, result: NegotiationResult) -> RdmaStream:
        return stream_of(result)


@documented_by(ListenOptions.of)
@opening
async def listen(
    host: str | Sequence[str] | None = None, port: int = 0, **keywords: Unpack[ListenKeywords]
) -> RdmaListener:
    """Listen for streams, from aiordma clients over RDMA and from all others over TCP, on the same port.

    ``async with listen(...) as listener: ...``, or ``await`` it and close the listener yourself.

    :param host: name or address, or several; None or ``""``: every interface, IPv4 and IPv6.
    :param port: 0: any free one, the same on all addresses (``listener.port``).
    :param config: settings; default: ``Config.from_env()``.
    :param mode: as in :func:`aiordma.connect`; ``"rdma"`` turns plain clients away.
    :param backlog: connections that the kernel keeps until they are accepted.
    :param max_negotiations: limit of negotiations at a time; beyond it, clients get TCP without waiting.
    :param max_pending: limit of connections that are not streams yet or wait for accept(); beyond it, the
        others wait in the kernel.
    :param sockets: TCP sockets that are bound, or listen already, in place of ``host`` and ``port``: those of
        socket activation, or bound by the program before it does something else. From now on they belong to
        the listener, and are closed with it. No rings are granted in advance on them, since other processes
        may have them, too.
    :param ssl: TLS on every connection: a server's context. See :func:`aiordma.connect`.
    :param rdma_outside_tls: as in :func:`aiordma.connect`.
    :raises OSError: the address cannot be listened on, naming it.
    :raises ValueError: a parameter has no valid value.
    """
    return await open_listener(RdmaListener, host, port, ListenOptions.of(**keywords), pre_grants=True)
