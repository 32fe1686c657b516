"""httpx, on asyncio and trio: a transport for ``httpx.AsyncClient`` whose connections negotiate RDMA.

::

    async with httpx.AsyncClient(transport=RdmaTransport()) as client:
        await client.get("http://storage:8000/")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from .httpcore import RdmaBackend

if TYPE_CHECKING:
    from ..config import Config, Mode

__all__ = ["RdmaTransport"]


class RdmaTransport(httpx.AsyncHTTPTransport):
    """``httpx.AsyncHTTPTransport`` on :class:`~aiordma.integrations.httpcore.RdmaBackend`."""

    def __init__(self, *, config: Config | None = None, mode: Mode | None = None, **options: Any) -> None:
        """`config`, `mode`: as of :func:`aiordma.connect`. `options`: those of ``AsyncHTTPTransport``."""
        super().__init__(**options)
        # httpx makes the pool itself and takes no backend for it; a pool uses its backend when it connects.
        self._pool._network_backend = RdmaBackend(config=config, mode=mode)
