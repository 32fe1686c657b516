"""aiordma's calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from aiordma import rpc

from .base import HOST
from .orders import Order, Receipt, order, settle
from .packed import ITEMS


def _service() -> rpc.Service:
    service = rpc.Service("bench")

    @service.method
    async def echo(message: bytes) -> bytes:
        return message

    @service.method
    def echo_inline(message: bytes) -> bytes:
        return message

    # A view of the received memory: a large message is echoed without a copy.
    @service.method
    async def echo_view(message: memoryview) -> memoryview:
        return message

    @service.method(name="settle")
    async def settle_order(asked: Order) -> Receipt:
        settled: Receipt = settle(asked)
        return settled

    @service.method
    async def items(request: bytes) -> AsyncIterator[bytes]:
        count, size = ITEMS.unpack(request)
        item = b"x" * size
        for _ in range(count):
            yield item

    return service


class RpcCaller:
    def __init__(self, client: rpc.Client, opened: AsyncExitStack, method: str) -> None:
        self._client = client
        self._opened = opened
        returns = memoryview if method == "echo_view" else None
        self.echo: Callable[[bytes], Awaitable[Any]] = partial(
            client.call, f"bench.{method}", returns=returns
        )

    @property
    def path(self) -> str | None:
        return self._client.path

    @property
    def fallback_reason(self) -> object:
        return self._client.fallback_reason

    async def order(self, number: int) -> tuple[int, float]:
        receipt = await self._client.call("bench.settle", order(number), returns=Receipt)
        return receipt.number, receipt.total

    async def items(self, count: int, size: int) -> AsyncIterator[Any]:
        async with self._client.stream("bench.items", ITEMS.pack(count, size)) as items:
            async for item in items:
                yield item

    async def close(self) -> None:
        await self._opened.aclose()


class Rpc:
    def __init__(self, method: str) -> None:
        self._method = method

    async def serve(self, ready: Callable[[str], None]) -> None:
        async with rpc.serve(_service(), HOST, 0) as server:
            ready(str(server.port))
            await asyncio.get_running_loop().create_future()

    async def connect(self, address: str) -> RpcCaller:
        opened = AsyncExitStack()
        client = await opened.enter_async_context(rpc.connect(HOST, int(address)))
        return RpcCaller(client, opened, self._method)


def async_handler() -> Rpc:
    return Rpc("echo")


def def_handler() -> Rpc:
    return Rpc("echo_inline")


def view_handler() -> Rpc:
    return Rpc("echo_view")
