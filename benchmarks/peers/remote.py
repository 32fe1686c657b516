"""Calls as programs make them otherwise: pyzmq's DEALER and ROUTER on `ipc://`, and Arrow Flight."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..workloads.calls import IN_FLIGHT
from .blocking import socket_path
from .orders import order, pack, settle_packed, unpack_receipt

#: In the number of a call that has an order.
ORDER = 1 << 63


async def _echo(payload: bytes) -> bytes:
    return payload


async def _settle(payload: bytes) -> bytes:
    return settle_packed(payload)


class ZmqCaller:
    """A number in front of each message says which call it belongs to."""

    path = None
    fallback_reason = None

    def __init__(self, address: str) -> None:
        import zmq.asyncio

        self._socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        self._socket.connect(f"ipc://{address}")
        self._numbers = itertools.count()
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while True:
            number, reply = await self._socket.recv_multipart()
            self._waiting.pop(number).set_result(reply)

    def echo(self, message: bytes) -> Awaitable[bytes]:
        return self._call(0, message)

    async def order(self, number: int) -> tuple[int, float]:
        receipt = unpack_receipt(await self._call(ORDER, pack(order(number))))
        return receipt.number, receipt.total

    async def _call(self, method: int, message: bytes) -> bytes:
        number = (next(self._numbers) | method).to_bytes(8, "little")
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        await self._socket.send_multipart([number, message])
        return await answered

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.wait({self._reading})
        self._socket.close(0)


class ZmqCalls:
    async def serve(self, ready: Callable[[str], None]) -> None:
        import zmq.asyncio

        async def answer(who: bytes, number: bytes, payload: bytes) -> None:
            handler = _settle if number[7] else _echo
            await socket.send_multipart([who, number, await handler(payload)])

        with socket_path() as path:
            socket = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
            socket.bind(f"ipc://{path}")
            ready(path)
            async with asyncio.TaskGroup() as tasks:
                while True:
                    tasks.create_task(answer(*await socket.recv_multipart()))

    async def connect(self, address: str) -> ZmqCaller:
        return ZmqCaller(address)


class FlightCaller:
    """Its Python client blocks, so each call in flight has a thread."""

    path = None
    fallback_reason = None

    def __init__(self, address: str) -> None:
        from pyarrow import flight

        self._client = flight.connect(address)
        self._action = flight.Action
        self._threads = ThreadPoolExecutor(IN_FLIGHT)

    def _call(self, method: str, message: bytes) -> bytes:
        (result,) = self._client.do_action(self._action(method, message))
        reply: bytes = result.body.to_pybytes()
        return reply

    def echo(self, message: bytes, method: str = "echo") -> Awaitable[bytes]:
        return asyncio.get_running_loop().run_in_executor(self._threads, self._call, method, message)

    async def order(self, number: int) -> tuple[int, float]:
        receipt = unpack_receipt(await self.echo(pack(order(number)), "settle"))
        return receipt.number, receipt.total

    async def close(self) -> None:
        self._threads.shutdown()
        self._client.close()


class FlightCalls:
    """Actions, which carry bytes, over gRPC on a Unix socket."""

    async def serve(self, ready: Callable[[str], None]) -> None:
        from pyarrow import flight

        class Server(flight.FlightServerBase):  # type: ignore[misc]
            def do_action(self, context: Any, action: Any) -> list[Any]:
                if action.type == "echo":
                    return [flight.Result(action.body)]
                return [flight.Result(settle_packed(action.body.to_pybytes()))]

        with socket_path() as path:
            server = Server(f"grpc+unix://{path}")
            threading.Thread(target=server.serve, daemon=True).start()
            ready(f"grpc+unix://{path}")
            await asyncio.get_running_loop().create_future()

    async def connect(self, address: str) -> FlightCaller:
        return FlightCaller(address)


def zmq_calls() -> ZmqCalls:
    return ZmqCalls()


def flight_calls() -> FlightCalls:
    return FlightCalls()
