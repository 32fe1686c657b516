"""`start_tls()` for every transport: the loop's own ones, on asyncio and on uvloop, and rings.

asyncio's own function takes any transport that says so. uvloop's takes uvloop's transports only; for a ring
on uvloop, asyncio's function does the work, which needs nothing of a loop that uvloop's do not have.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
from typing import TYPE_CHECKING, Any

from ..borrowed import ENABLED
from .fallback import PATH_INFO, Introduction, TransportView, with_info
from .own_methods import unpatched
from .transport import RingTransport

if TYPE_CHECKING:
    import ssl

__all__ = ["start_tls"]

#: Transports that asyncio's own function takes on every loop.
_taken: tuple[type, ...] = (RingTransport,)
if ENABLED and hasattr(asyncio.sslproto, "_SSLProtocolTransport"):
    _taken += (asyncio.sslproto._SSLProtocolTransport,)


async def start_tls(
    transport: asyncio.BaseTransport,
    protocol: asyncio.BaseProtocol,
    sslcontext: ssl.SSLContext,
    **options: Any,
) -> asyncio.Transport | None:
    """Go on inside TLS, as asyncio's `loop.start_tls()`, for transports of aiordma and of the loop alike.

    The options and errors are the same. On a connection over RDMA, TLS travels over RDMA.

    :return: the transport to use from now on, which has the path in its extra info as well.
    """
    loop: Any = asyncio.get_running_loop()
    inside: asyncio.Transport | None
    if isinstance(transport, TransportView):
        info = {name: transport.get_extra_info(name) for name in PATH_INFO}
        holder = transport.wrapped.get_protocol()
        if isinstance(holder, Introduction):
            holder.give_up_waiting()
        inside = await start_tls(transport.wrapped, protocol, sslcontext, **options)
        return None if inside is None else with_info(inside, info)
    if isinstance(transport, _taken):
        inside = await unpatched(loop, asyncio.BaseEventLoop).start_tls(
            transport, protocol, sslcontext, **options
        )
    else:
        inside = await unpatched(loop).start_tls(transport, protocol, sslcontext, **options)
    return inside
