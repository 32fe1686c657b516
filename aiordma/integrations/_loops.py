"""The event loop as a library's connection or server sees it: it makes connections of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..compat.connection import create_connection, create_server

if TYPE_CHECKING:
    import asyncio

    from ..config import Config, Mode

__all__ = ["Negotiating"]


class Negotiating:
    """An event loop whose `create_connection()` and `create_server()` negotiate; all else is the loop's own.

    For libraries that keep their loop in an attribute. They call the two with the loop that runs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, config: Config | None, mode: Mode | None) -> None:
        self._loop = loop
        self._ours: dict[str, Any] = {"config": config, "mode": mode}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        """See asyncio."""
        return await create_connection(protocol_factory, host, port, **self._ours, **options)

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        """See asyncio."""
        return await create_server(protocol_factory, host, port, **self._ours, **options)
