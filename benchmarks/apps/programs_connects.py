"""Opening many connections at once, as a pool of clients does when it or its server starts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable

#: What a connection sends once, and gets back.
_GREETING = b"x" * 64


class Echo(asyncio.Protocol):
    """The server's end of a connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Greeting(asyncio.Protocol):
    """The client's end: `answered` when the greeting has come back."""

    def __init__(self) -> None:
        self.answered = asyncio.get_running_loop().create_future()
        self.lost = asyncio.get_running_loop().create_future()
        self.left = len(_GREETING)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(_GREETING)

    def data_received(self, data: bytes) -> None:
        self.left -= len(data)
        if not self.left:
            self.answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(None)
        if not self.answered.done():
            self.answered.set_exception(exc or ConnectionResetError("the server closed the connection"))


async def serve_connects(ready: Callable[[int], None]) -> None:
    """Any number of connections at once."""
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0, backlog=2048)
    ready(server.sockets[0].getsockname()[1])
    await asyncio.Event().wait()


async def drive_connects(
    port: int, connections: int, _size: int
) -> tuple[list[Any], str, Callable[[], None]]:
    """One request: all are opened, have an answer, and are closed."""
    loop = asyncio.get_running_loop()

    async def open_one() -> Greeting:
        greeting = (await loop.create_connection(Greeting, "127.0.0.1", port))[1]
        await greeting.answered
        return greeting

    async def open_all() -> None:
        made = await asyncio.gather(*(open_one() for _ in range(connections)))
        ways = {str(each.transport.get_extra_info("aiordma.path", "tcp")) for each in made}
        assert ways == {path}, ways
        for each in made:
            each.transport.close()
        await asyncio.gather(*(each.lost for each in made))

    first = await open_one()
    path = str(first.transport.get_extra_info("aiordma.path", "tcp"))
    return [open_all], path, first.transport.close
