"""Hand-written calls: length-prefixed msgpack on asyncio's streams, many in flight at a time.

A request is `[id, method, payload]`, a reply `[id, last, payload]`. Every handler runs in a task, as in the
other peers.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from msgspec import msgpack

from .base import HOST
from .orders import order, pack, settle_packed, unpack_receipt

LENGTH = struct.Struct("<I")
ITEMS = struct.Struct("<QQ")
ECHO, STREAM, ORDER = 0, 1, 2

Handler = Callable[[bytes], Awaitable[bytes]]

_encode = msgpack.Encoder().encode
_decode = msgpack.Decoder(tuple[int, int, bytes]).decode


async def _read(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    (length,) = LENGTH.unpack(await reader.readexactly(4))
    return _decode(await reader.readexactly(length))


def _write(writer: asyncio.StreamWriter, message: tuple[int, int, bytes]) -> None:
    data = _encode(message)
    if len(data) > 4096:
        writer.write(LENGTH.pack(len(data)))
        writer.write(data)
    else:
        writer.write(LENGTH.pack(len(data)) + data)


async def _echo(payload: bytes) -> bytes:
    return payload


async def _settle(payload: bytes) -> bytes:
    return settle_packed(payload)


async def _answer(writer: asyncio.StreamWriter, number: int, payload: bytes, handler: Handler) -> None:
    with contextlib.suppress(ConnectionError):
        _write(writer, (number, 1, await handler(payload)))
        await writer.drain()


async def _answer_items(writer: asyncio.StreamWriter, number: int, payload: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        count, size = ITEMS.unpack(payload)
        item = b"x" * size
        for _ in range(count):
            _write(writer, (number, 0, item))
            await writer.drain()
        _write(writer, (number, 1, b""))


async def _serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    tasks: set[asyncio.Task[None]] = set()
    try:
        while True:
            number, method, payload = await _read(reader)
            if method == STREAM:
                answering = _answer_items(writer, number, payload)
            else:
                answering = _answer(writer, number, payload, _echo if method == ECHO else _settle)
            task = asyncio.create_task(answering)
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        for task in tasks:
            task.cancel()
        writer.close()


class PackedCaller:
    path = None
    fallback_reason = None

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._streams: dict[int, asyncio.Queue[bytes | None]] = {}
        self._next = 0
        self._task = asyncio.create_task(self._receive())

    async def _receive(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                number, last, payload = await _read(self._reader)
                if (future := self._waiting.pop(number, None)) is not None:
                    if not future.done():  # cancelled
                        future.set_result(payload)
                elif (queue := self._streams.get(number)) is not None:
                    await queue.put(None if last else payload)

    def _call(self, method: int, message: bytes) -> asyncio.Future[bytes]:
        self._next = number = self._next + 1
        self._waiting[number] = future = asyncio.get_running_loop().create_future()
        _write(self._writer, (number, method, message))
        return future

    def echo(self, message: bytes) -> Awaitable[Any]:
        return self._call(ECHO, message)

    async def order(self, number: int) -> tuple[int, float]:
        receipt = unpack_receipt(await self._call(ORDER, pack(order(number))))
        return receipt.number, receipt.total

    async def items(self, count: int, size: int) -> AsyncIterator[Any]:
        self._next = number = self._next + 1
        # Bounded, as the windows of the other peers are.
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(max(1, (1 << 20) // size))
        self._streams[number] = queue
        _write(self._writer, (number, STREAM, ITEMS.pack(count, size)))
        while (item := await queue.get()) is not None:
            yield item
        del self._streams[number]

    async def close(self) -> None:
        self._writer.close()
        await self._task
        await self._writer.wait_closed()


class Packed:
    async def serve(self, ready: Callable[[str], None]) -> None:
        # The limit holds a whole message: with a smaller one the reader would pause the transport in each.
        server = await asyncio.start_server(_serve_one, HOST, 0, limit=4 << 20)
        ready(str(server.sockets[0].getsockname()[1]))
        await server.serve_forever()

    async def connect(self, address: str) -> PackedCaller:
        return PackedCaller(*await asyncio.open_connection(HOST, int(address), limit=4 << 20))


def msgpack_calls() -> Packed:
    return Packed()
