"""Ray: the methods of an asynchronous actor, on a cluster of this host that the server's process starts.

The cluster's own processes and the actor run on the server's CPU. Messages above 100 KiB go through its
shared memory.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import os
from collections.abc import Awaitable, Callable
from typing import Any

from .orders import order, settle

NAME = "bench"
#: On loopback, which Ray does not use otherwise on Linux; its token at both ends; no statistics to others.
os.environ |= {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@dataclasses.dataclass
class Line:
    article: str
    count: int
    price: float


@dataclasses.dataclass
class Order:
    """`orders.Order`, as Ray's users write it: pickled."""

    number: int
    customer: str
    street: str
    paid: bool
    lines: list[Line]


@dataclasses.dataclass
class Receipt:
    number: int
    total: float
    articles: list[str]


class Actor:
    async def echo(self, message: bytes) -> bytes:
        return message

    async def settle(self, asked: Order) -> Receipt:
        settled: Receipt = settle(asked, Receipt)
        return settled


class RayCaller:
    path = None
    fallback_reason = None

    def __init__(self, ray: Any) -> None:
        self._ray, self._actor = ray, ray.get_actor(NAME)

    def echo(self, message: bytes) -> Awaitable[bytes]:
        reply: Awaitable[bytes] = self._actor.echo.remote(message)
        return reply

    async def order(self, number: int) -> tuple[int, float]:
        receipt: Receipt = await self._actor.settle.remote(order(number, Line, Order))
        return receipt.number, receipt.total

    async def close(self) -> None:
        await asyncio.to_thread(self._ray.shutdown)


class RayActor:
    async def serve(self, ready: Callable[[str], None]) -> None:
        ray: Any = importlib.import_module("ray")

        def start() -> str:
            ray.init(
                num_cpus=1,
                include_dashboard=False,
                namespace=NAME,
                log_to_driver=False,
                configure_logging=False,
                object_store_memory=200 << 20,
            )
            made = ray.remote(num_cpus=0, max_concurrency=1000)(Actor)
            self._actor = made.options(name=NAME).remote()
            ray.get(self._actor.echo.remote(b""))
            address: str = ray.get_runtime_context().gcs_address
            return address

        try:
            ready(await asyncio.to_thread(start))
            await asyncio.get_running_loop().create_future()
        finally:
            ray.shutdown()

    async def connect(self, address: str) -> RayCaller:
        ray: Any = importlib.import_module("ray")
        await asyncio.to_thread(
            ray.init, address=address, namespace=NAME, log_to_driver=False, configure_logging=False
        )
        return RayCaller(ray)


def ray_actor() -> RayActor:
    return RayActor()
