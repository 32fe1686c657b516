"""websockets: connections to servers that negotiate RDMA.

::

    async with connect("ws://storage:8765/") as websocket:
        await websocket.send("hello")

A server needs an event loop of :func:`aiordma.new_event_loop`, or `aiordma run`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..compat.connection import create_connection
from ._versions import check_version, unusable

try:
    import websockets
    from websockets.asyncio.client import connect as websockets_connect
    from websockets.proxy import get_proxy
except ImportError as error:
    raise unusable("websockets") from error

if TYPE_CHECKING:
    from ..config import Config, Mode

check_version("websockets")

__all__ = ["connect"]


class connect(websockets_connect):  # type: ignore[misc]
    """``websockets.connect()`` over RDMA, with TCP for everybody else.

    ``wss://`` URIs, proxies and Unix sockets are as without aiordma.
    """

    def __init__(
        self, uri: str, *, config: Config | None = None, mode: Mode | None = None, **options: Any
    ) -> None:
        """`config`, `mode`: as of :func:`aiordma.create_connection`. `options`: those of websockets."""
        super().__init__(uri, **options)
        self._ours: dict[str, Any] = {"config": config, "mode": mode}

    async def open_tcp_connection(self) -> websockets.ClientConnection:
        """See websockets, which calls it for each attempt and redirect."""
        where = self.ws_uri
        given = dict(self.create_connection_kwargs)
        proxy = None if given.get("sock") is not None else self.proxy
        if proxy is True:
            proxy = get_proxy(where)
        if where.secure or proxy is not None or given.get("unix"):
            return await super().open_tcp_connection()
        if given.get("sock") is None:
            given = {"host": where.host, "port": where.port, **given}
        _, connection = await create_connection(lambda: self.factory(where), **given, **self._ours)
        return connection
