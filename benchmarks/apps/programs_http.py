"""HTTP servers, and a client that is little more than asyncio's transport."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)\r\n")


async def serve_aiohttp(ready: Callable[[int], None]) -> None:
    bodies: dict[str, bytes] = {}

    async def answer(request: web.Request) -> web.Response:
        size = request.match_info["size"]
        return web.Response(body=bodies.setdefault(size, b"x" * int(size)))

    app = web.Application()
    app.router.add_get("/{size}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    ready(runner.addresses[0][1])
    await asyncio.Event().wait()


async def serve_uvicorn(ready: Callable[[int], None]) -> None:
    bodies: dict[str, bytes] = {}

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        size = scope["path"][1:]
        body = bodies.setdefault(size, b"x" * int(size))
        length = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": body})

    config = uvicorn.Config(
        app, port=0, lifespan="off", log_level="warning", access_log=False, http="httptools"
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
        if serving.done():
            break
    else:
        ready(server.servers[0].sockets[0].getsockname()[1])
    await serving


class Get(asyncio.Protocol):
    """One keep-alive connection, one request at a time; with `body`, a POST of as much."""

    def __init__(self, size: int, body: bool = False) -> None:
        self.request = b"GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % size
        if body:
            head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size
            self.request = head + b"x" * size
        self.size = size
        self.left = 0
        self.head = b""
        self.done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def get(self) -> asyncio.Future[None]:
        self.done = asyncio.get_running_loop().create_future()
        self.transport.write(self.request)
        return self.done

    def data_received(self, data: bytes) -> None:
        if not self.left:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return
            found = LENGTH.search(self.head, 0, end + 2)
            if found is None or int(found[1]) != self.size:
                self._fail(ValueError(f"an answer that was not expected: {self.head[:200]!r}"))
                return
            self.left = end + 4 + self.size
            data, self.head = self.head, b""
        self.left -= len(data)
        if not self.left and self.done is not None:
            self.done.set_result(None)
            self.done = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ConnectionResetError("the server closed the connection"))

    def _fail(self, exc: Exception) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(exc)


async def drive_http(
    port: int, connections: int, size: int, body: bool = False
) -> tuple[list[Any], str, Callable[[], None]]:
    loop = asyncio.get_running_loop()
    made = [
        (await loop.create_connection(lambda: Get(size, body), "127.0.0.1", port))[1]
        for _ in range(connections)
    ]
    path = str(made[0].transport.get_extra_info("aiordma.path", "tcp"))
    requests = [connection.get for connection in made]

    def close() -> None:
        for connection in made:
            connection.transport.close()

    return requests, path, close
