"""A Python client of an unmodified valkey-server: by Valkey's own RDMA protocol, or by TCP.

    python -m benchmarks.apps.valkey PORT rdma|tcp --client streams --in-flight 64 --size 64 --requests 20000

`streams` is what a client needs at least: asyncio's StreamReader and StreamWriter, and RESP for GET and SET.
`redis` is redis-py. Prints one line of JSON: requests per second, and CPU time in microseconds for each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import redis.asyncio
import uvloop

from aiordma.config import Config
from aiordma.integrations._redis_family import open_valkey
from aiordma.integrations.redis import from_url

from ..processes import read_process

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

HOST = "127.0.0.1"
WARM_UP = 200


def command(*words: bytes) -> bytes:
    """In RESP."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


class StreamsClient:
    """One connection, with any number of requests in flight."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def ask_alone(self, request: bytes) -> bytes:
        """Nothing else is in flight."""
        self._writer.write(request)
        await self._writer.drain()
        return await self._answer()

    async def ask(self, request: bytes) -> bytes:
        """Beside others."""
        if self._task is None:
            self._task = asyncio.create_task(self._read())
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._writer.write(request)
        await self._writer.drain()
        return await answer

    async def _read(self) -> None:
        while True:
            answer = await self._answer()
            self._waiting.popleft().set_result(answer)

    async def _answer(self) -> bytes:
        line = await self._reader.readuntil(b"\r\n")
        if line[:1] != b"$":
            return line[1:-2]
        data = await self._reader.readexactly(int(line[1:]) + 2)
        return data[:-2] if len(data) < 65536 else data  # a large one is not copied once more

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._writer.close()


async def open_streams(
    options: argparse.Namespace,
) -> tuple[Callable[[], Awaitable[None]], Callable[[], Any]]:
    """A request, and how to close. A request of a megabyte is a SET and a GET by turns, others are GETs."""
    if options.path == "rdma":
        reader, writer = await open_valkey(HOST, options.port, Config(), options.buffer)
    else:
        reader, writer = await asyncio.open_connection(HOST, options.port)
    client = StreamsClient(reader, writer)
    ask = client.ask_alone if options.in_flight == 1 else client.ask
    put, get = command(b"SET", b"key", options.value), command(b"GET", b"key")
    await client.ask_alone(put)
    large = options.size >= 65536
    turn = 0

    async def request() -> None:
        nonlocal turn
        turn += large
        answer = await ask(put if turn % 2 else get)
        assert answer == b"OK" or len(answer) - options.size in (0, 2)

    return request, client.close


async def open_redis(options: argparse.Namespace) -> tuple[Callable[[], Awaitable[None]], Callable[[], Any]]:
    """The same by redis-py, which has a connection for each request in flight."""
    if options.path == "rdma":
        client = from_url(
            f"valkey+rdma://{HOST}:{options.port}",
            buffer_bytes=options.buffer,
            socket_connect_timeout=60,
        )
    else:
        client = redis.asyncio.Redis(host=HOST, port=options.port, socket_connect_timeout=60)
    await client.set("key", options.value)
    large = options.size >= 65536
    turn = 0

    async def request() -> None:
        nonlocal turn
        turn += large
        if turn % 2:
            await client.set("key", options.value)
        else:
            assert len(await client.get("key")) == options.size

    return request, client.aclose


async def load(request: Callable[[], Awaitable[None]], in_flight: int, requests: int) -> int:
    """`in_flight` requests at any time; how many were made."""
    each = max(1, requests // in_flight)

    async def repeat() -> None:
        for _ in range(each):
            await request()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(in_flight):
            tasks.create_task(repeat())
    return each * in_flight


async def main(options: argparse.Namespace) -> None:
    if options.cpu is not None:
        os.sched_setaffinity(0, {options.cpu})
    options.value = os.urandom(options.size)
    request, close = await (open_redis if options.client == "redis" else open_streams)(options)
    await load(request, options.in_flight, min(WARM_UP, options.requests))
    server_before = read_process(options.server) if options.server else None
    before, began = read_process(os.getpid()), time.perf_counter()
    done = await load(request, options.in_flight, options.requests)
    took = time.perf_counter() - began
    used = (read_process(os.getpid()) - before).cpu_us
    if server_before is not None:
        used += (read_process(options.server) - server_before).cpu_us
    print(json.dumps({"per_second": done / took, "cpu_us": used / done, "requests": done}))
    closing = close()
    if closing is not None:
        await closing
    await asyncio.sleep(0)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("port", type=int)
    made.add_argument("path", choices=("rdma", "tcp"))
    made.add_argument("--client", choices=("streams", "redis"), default="streams")
    made.add_argument("--in-flight", type=int, default=1)
    made.add_argument("--size", type=int, default=64, help="of the value, in bytes")
    made.add_argument("--requests", type=int, default=5_000)
    made.add_argument("--buffer", type=int, default=1 << 20, help="transfer buffer by RDMA, in bytes")
    made.add_argument("--cpu", type=int, help="run on this one only")
    made.add_argument("--server", type=int, help="process whose CPU time counts, too")
    return made


if __name__ == "__main__":
    uvloop.run(main(parser().parse_args()))
