"""httpx, on asyncio and trio: a transport for ``httpx.AsyncClient`` whose connections negotiate RDMA.

::

    async with httpx.AsyncClient(transport=RdmaTransport()) as client:
        await client.get("http://storage:8000/")
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Self

from ._versions import check_version, unusable
from .httpcore import RdmaBackend

try:
    import httpx
except ImportError as error:
    raise unusable("httpx") from error

if TYPE_CHECKING:
    from ..config import Config, Mode

check_version("httpx")

__all__ = ["RdmaTransport"]


class RdmaTransport(httpx.AsyncHTTPTransport):
    """``httpx.AsyncHTTPTransport`` on :class:`~aiordma.integrations.httpcore.RdmaBackend`."""

    def __init__(self, *, config: Config | None = None, mode: Mode | None = None, **options: Any) -> None:
        """`config`, `mode`: as of :func:`aiordma.connect`. `options`: those of ``AsyncHTTPTransport``."""
        super().__init__(**options)
        # httpx makes the pool itself and takes no backend for it; a pool uses its backend when it connects.
        self._pool._network_backend = RdmaBackend(config=config, mode=mode)

    async def __aenter__(self) -> Self:
        """See httpx. :raises ValueError: the client sends all its requests by another transport."""
        _refuse_to_idle(sys._getframe(1).f_locals.get("self"), self)
        await super().__aenter__()
        return self


def _refuse_to_idle(client: object, transport: RdmaTransport) -> None:
    """A client that is given ``proxy=`` makes a transport of its own for it, and the given one gets nothing.

    :param client: who enters `transport`; anything else than such a client is none of this.
    """
    if not isinstance(client, httpx.AsyncClient) or getattr(client, "_transport", None) is not transport:
        return
    for pattern, other in getattr(client, "_mounts", {}).items():
        if pattern.pattern == "all://" and other is not None and not isinstance(other, RdmaTransport):
            raise ValueError(
                "AsyncClient(transport=RdmaTransport(), proxy=...) sends everything by a transport of "
                "httpx's own: give the proxy to RdmaTransport(proxy=...)"
            )
