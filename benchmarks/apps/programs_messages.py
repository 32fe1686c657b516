"""Echoes of messages: websockets and grpclib, both ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler
from grpclib.server import Server
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

if TYPE_CHECKING:
    from collections.abc import Callable


async def serve_websockets(ready: Callable[[int], None]) -> None:
    async def echo(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(message)

    async with serve(echo, "127.0.0.1", 0, compression=None, max_size=None) as server:
        ready(next(iter(server.sockets)).getsockname()[1])
        await asyncio.Event().wait()


async def drive_websockets(
    port: int, connections: int, size: int
) -> tuple[list[Any], str, Callable[[], None]]:
    made = [
        await connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None) for _ in range(connections)
    ]
    message = b"x" * size

    def request(connection: Any) -> Callable[[], Any]:
        async def one() -> None:
            await connection.send(message)
            assert len(await connection.recv()) == size

        return one

    path = str(made[0].transport.get_extra_info("aiordma.path", "tcp"))

    def close() -> None:
        for connection in made:
            connection.transport.abort()

    return [request(connection) for connection in made], path, close


class Bytes:
    """A grpclib codec for raw bytes."""

    __content_subtype__ = "bytes"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> Any:
        return data


class Echo:
    """The service."""

    async def echo(self, stream: Any) -> None:
        await stream.send_message(await stream.recv_message())

    def __mapping__(self) -> dict[str, Handler]:
        return {"/bench.Echo/Echo": Handler(self.echo, Cardinality.UNARY_UNARY, bytes, bytes)}


async def serve_grpclib(ready: Callable[[int], None]) -> None:
    codec: Any = Bytes()
    server = Server([Echo()], codec=codec)
    await server.start("127.0.0.1", 0)
    listening: Any = server._server  # grpclib has no other way to learn the port
    ready(listening.sockets[0].getsockname()[1])
    await server.wait_closed()


async def drive_grpclib(port: int, connections: int, size: int) -> tuple[list[Any], str, Callable[[], None]]:
    codec: Any = Bytes()
    message = b"x" * size
    requests = []
    channels = [Channel("127.0.0.1", port, codec=codec) for _ in range(connections)]
    for channel in channels:
        method: Any = UnaryUnaryMethod(channel, "/bench.Echo/Echo", bytes, bytes)
        assert len(await method(message)) == size

        async def one(method: Any = method) -> None:
            await method(message)

        requests.append(one)
    first: Any = channels[0]
    path = str(first._protocol.connection._transport.get_extra_info("aiordma.path", "tcp"))

    def close() -> None:
        for channel in channels:
            channel.close()

    return requests, path, close
