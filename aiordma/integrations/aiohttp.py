"""aiohttp: a connector for ``aiohttp.ClientSession`` whose connections negotiate RDMA.

::

    async with aiohttp.ClientSession(connector=RdmaConnector()) as session:
        async with session.get("http://storage:8000/") as response:
            ...

A server needs an event loop of :func:`aiordma.new_event_loop`, or `aiordma run`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._loops import Negotiating
from ._versions import check_version, unusable

try:
    import aiohttp
except ImportError as error:
    raise unusable("aiohttp") from error

if TYPE_CHECKING:
    from ..config import Config, Mode

check_version("aiohttp")

__all__ = ["RdmaConnector"]


class RdmaConnector(aiohttp.TCPConnector):
    """``aiohttp.TCPConnector`` over RDMA, with TCP for everybody else. TLS connections stay on TCP."""

    def __init__(self, *, config: Config | None = None, mode: Mode | None = None, **options: Any) -> None:
        """`config`, `mode`: as of :func:`aiordma.create_connection`. `options`: those of ``TCPConnector``."""
        super().__init__(**options)
        self._negotiating = Negotiating(self._loop, config, mode)

    async def _wrap_create_connection(self, *args: Any, **options: Any) -> Any:
        # aiohttp compares the connector's loop with its session's, so it is another one in here only.
        view: Any = _View(self)
        return await aiohttp.TCPConnector._wrap_create_connection(view, *args, **options)


class _View:
    """The connector, with a loop that negotiates."""

    def __init__(self, connector: RdmaConnector) -> None:
        self._connector, self._loop = connector, connector._negotiating

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connector, name)
