"""``aiordma top --serve``: looks at all processes again and again, and serves a live page of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from .history import History
from .page import MARKUP, SCRIPT, STYLE
from .web import Answer, Site

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...admin.report import Report


class _Looks:
    """Takes a look in a thread at each interval, and keeps the last page as bytes.

    :param collect: takes one; it may block.
    """

    def __init__(self, collect: Callable[[], Report], interval_s: float) -> None:
        self._collect, self._interval_s = collect, interval_s
        self._history = History(interval_s)
        self.page = b""

    def _take(self) -> None:
        self.page = msgspec.json.encode(self._history.add(self._collect()))

    async def look(self) -> None:
        await asyncio.to_thread(self._take)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        following = loop.time()
        while True:
            following = max(following + self._interval_s, loop.time())
            await asyncio.sleep(following - loop.time())
            await self.look()


async def serve(
    host: str, port: int, collect: Callable[[], Report], interval_s: float, ready: Callable[[str], None]
) -> None:
    """Until it is cancelled.

    :param collect: takes a look at all processes.
    :param ready: gets the address of the page when there is something to see.
    :raises OSError: it cannot listen there.
    """
    looks = _Looks(collect, interval_s)
    site = Site(
        host,
        {
            "/": lambda: Answer("text/html; charset=utf-8", MARKUP.encode()),
            "/page.css": lambda: Answer("text/css; charset=utf-8", STYLE.encode()),
            "/page.js": lambda: Answer("text/javascript; charset=utf-8", SCRIPT.encode()),
            "/top.json": lambda: Answer("application/json", looks.page),
        },
    )
    server = await site.listen(port)
    try:
        await looks.look()
        ready(_address(server))
        await looks.run()
    finally:
        server.close()


def _address(server: asyncio.Server) -> str:
    host, port, *_ = server.sockets[0].getsockname()
    shown = {"0.0.0.0": "localhost", "::": "localhost"}.get(host, host)
    return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"
