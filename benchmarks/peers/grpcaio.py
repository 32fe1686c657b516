"""grpc.aio: the asyncio calls of grpcio, on one channel over TCP, with bytes, or with protobuf messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from .orders import pb, pb_order, pb_settle
from .packed import ITEMS

# No limit on messages; no compression, no retries, nothing else that costs time.
_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Otherwise the channels of a process share one connection.
    ("grpc.use_local_subchannel_pool", 1),
]


async def _echo(request: bytes, context: Any) -> bytes:
    return request


async def _settle(request: Any, context: Any) -> Any:
    return pb_settle(request)


async def _items(request: bytes, context: Any) -> AsyncIterator[bytes]:
    count, size = ITEMS.unpack(request)
    item = b"x" * size
    for _ in range(count):
        yield item


class GrpcCaller:
    path = None
    fallback_reason = None

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{address}", options=_OPTIONS)
        # Without serializers bytes are sent as they are.
        self._echo = self._channel.unary_unary("/bench.Bench/Echo")
        self._settle = self._channel.unary_unary(
            "/bench.Bench/Settle",
            request_serializer=pb()["Order"].SerializeToString,
            response_deserializer=pb()["Receipt"].FromString,
        )
        self._items = self._channel.unary_stream("/bench.Bench/Items")

    def echo(self, message: bytes) -> Awaitable[Any]:
        call: Awaitable[Any] = self._echo(message)
        return call

    async def order(self, number: int) -> tuple[int, float]:
        receipt = await self._settle(pb_order(number))
        return receipt.number, receipt.total

    async def items(self, count: int, size: int) -> AsyncIterator[Any]:
        async for item in self._items(ITEMS.pack(count, size)):
            yield item

    async def close(self) -> None:
        await self._channel.close()


class GrpcAio:
    async def serve(self, ready: Callable[[str], None]) -> None:
        server = grpc.aio.server(options=_OPTIONS)
        handlers = {
            "Echo": grpc.unary_unary_rpc_method_handler(_echo),
            "Settle": grpc.unary_unary_rpc_method_handler(
                _settle,
                request_deserializer=pb()["Order"].FromString,
                response_serializer=pb()["Receipt"].SerializeToString,
            ),
            "Items": grpc.unary_stream_rpc_method_handler(_items),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Bench", handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        ready(str(port))
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await server.stop(None)

    async def connect(self, address: str) -> GrpcCaller:
        return GrpcCaller(address)


def grpc_aio() -> GrpcAio:
    return GrpcAio()
