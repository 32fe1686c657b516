"""grpclib: gRPC in Python on h2, with bytes, or with protobuf messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from grpclib.client import Channel, UnaryStreamMethod, UnaryUnaryMethod
from grpclib.config import Configuration
from grpclib.const import Cardinality, Handler
from grpclib.server import Server

from .orders import pb, pb_order, pb_settle
from .packed import ITEMS

# The default windows of 4 MiB hold every message here.
_WINDOW = 4 * 1024 * 1024


class _Bytes:
    """A grpclib codec for raw bytes and for protobuf messages."""

    __content_subtype__ = "bytes"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message) if message_type is bytes else message.SerializeToString()

    def decode(self, data: bytes, message_type: Any) -> Any:
        return data if message_type is bytes else message_type.FromString(data)


def _codec() -> Any:
    return _Bytes()


def _configuration() -> Configuration:
    return Configuration(http2_connection_window_size=_WINDOW, http2_stream_window_size=_WINDOW)


class _Bench:
    async def echo(self, stream: Any) -> None:
        await stream.send_message(await stream.recv_message())

    async def settle(self, stream: Any) -> None:
        await stream.send_message(pb_settle(await stream.recv_message()))

    async def items(self, stream: Any) -> None:
        count, size = ITEMS.unpack(await stream.recv_message())
        item = b"x" * size
        for _ in range(count):
            await stream.send_message(item)

    def __mapping__(self) -> dict[str, Handler]:
        return {
            "/bench.Bench/Echo": Handler(self.echo, Cardinality.UNARY_UNARY, bytes, bytes),
            "/bench.Bench/Settle": Handler(
                self.settle, Cardinality.UNARY_UNARY, pb()["Order"], pb()["Receipt"]
            ),
            "/bench.Bench/Items": Handler(self.items, Cardinality.UNARY_STREAM, bytes, bytes),
        }


class GrpclibCaller:
    path = None
    fallback_reason = None

    def __init__(self, address: str) -> None:
        self._channel = Channel("127.0.0.1", int(address), codec=_codec(), config=_configuration())
        self._echo: Any = UnaryUnaryMethod(self._channel, "/bench.Bench/Echo", bytes, bytes)
        self._settle: Any = UnaryUnaryMethod(
            self._channel, "/bench.Bench/Settle", pb()["Order"], pb()["Receipt"]
        )
        self._items: Any = UnaryStreamMethod(self._channel, "/bench.Bench/Items", bytes, bytes)

    def echo(self, message: bytes) -> Awaitable[Any]:
        call: Awaitable[Any] = self._echo(message)
        return call

    async def order(self, number: int) -> tuple[int, float]:
        receipt = await self._settle(pb_order(number))
        return receipt.number, receipt.total

    async def items(self, count: int, size: int) -> AsyncIterator[Any]:
        async with self._items.open() as stream:
            await stream.send_message(ITEMS.pack(count, size), end=True)
            async for item in stream:
                yield item

    async def close(self) -> None:
        self._channel.close()


class Grpclib:
    async def serve(self, ready: Callable[[str], None]) -> None:
        server = Server([_Bench()], codec=_codec(), config=_configuration())
        await server.start("127.0.0.1", 0)
        listening: Any = server._server
        ready(str(listening.sockets[0].getsockname()[1]))
        try:
            await server.wait_closed()
        finally:
            server.close()

    async def connect(self, address: str) -> GrpclibCaller:
        return GrpclibCaller(address)


def grpclib_calls() -> Grpclib:
    return Grpclib()
