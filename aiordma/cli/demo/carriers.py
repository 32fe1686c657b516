"""Both ends of round trips on one carrier, each a process: what the demo's table of latencies is made of.

The same messages travel on TCP, on a Unix socket and on a stream of aiordma, bare and as typed calls. Both
ends of all of them have the same event loop. *Awake* means that no end ever sleeps: aiordma polls its
completion queue, and a loop that waits for sockets asks them without a pause. *Asleep* means that each end
sleeps until the kernel wakes it. In both, an end says how much processor time it used.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import sys
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import msgspec

from ... import rpc
from ...config import Config
from ...streams.connector import connect
from ...streams.listener import listen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ...streams.stream import RdmaStream

SIZE = 64
#: Round trips before, at most; on a busy machine time ends them earlier.
WARM_UP = 300
#: A message that starts with it asks for the processor time of the other end.
_TIME = b"?"
_MESSAGE = b"m" * SIZE
_LENGTH = struct.Struct("!I")


class Order(msgspec.Struct):
    """What a typed call carries: about 64 bytes in MessagePack."""

    article: str
    count: int
    price: float
    note: str


ORDER = Order("apple", 3, 1.25, "please deliver before noon")
shop = rpc.Service("shop")


@shop.method
def order(what: Order) -> Order:
    """The same order, to tell that it is known."""
    return what


@shop.method
def used() -> float:
    """Processor time of the server's process in seconds."""
    return process_time()


# ---- on asyncio's streams: a message is 64 bytes, or a length and MessagePack


async def _echo_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            data = await reader.readexactly(SIZE)
            writer.write(struct.pack("d56x", process_time()) if data.startswith(_TIME) else data)
    writer.close()


async def _serve_orders(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    decode, encode = msgspec.msgpack.Decoder(Order | None).decode, msgspec.msgpack.Encoder().encode
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            what = decode(await reader.readexactly(length))
            reply = encode(process_time() if what is None else what)
            writer.write(_LENGTH.pack(len(reply)) + reply)
    writer.close()


@contextlib.asynccontextmanager
async def _bytes_over(open_: Any) -> AsyncIterator[tuple[Any, Any]]:
    reader, writer = await open_

    async def step() -> None:
        writer.write(_MESSAGE)
        await reader.readexactly(SIZE)

    async def cpu() -> float:
        writer.write(_TIME * SIZE)
        return float(struct.unpack("d56x", await reader.readexactly(SIZE))[0])

    yield step, cpu
    writer.close()


@contextlib.asynccontextmanager
async def _orders_over(open_: Any) -> AsyncIterator[tuple[Any, Any]]:
    reader, writer = await open_
    encode = msgspec.msgpack.Encoder().encode

    async def ask(what: Order | None, kind: Any) -> Any:
        question = encode(what)
        writer.write(_LENGTH.pack(len(question)) + question)
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return msgspec.msgpack.decode(await reader.readexactly(length), type=kind)

    yield lambda: ask(ORDER, Order), lambda: ask(None, float)
    writer.close()


# ---- on aiordma


async def _echo_stream(stream: RdmaStream) -> None:
    while True:
        data = await stream.receive_exactly(SIZE)
        await stream.send(struct.pack("d56x", process_time()) if data.startswith(_TIME) else data)


@contextlib.asynccontextmanager
async def _stream(port: int, config: Config) -> AsyncIterator[tuple[Any, Any]]:
    async with connect("127.0.0.1", port, mode="rdma", config=config) as stream:

        async def step() -> None:
            await stream.send(_MESSAGE)
            await stream.receive_exactly(SIZE)

        async def cpu() -> float:
            await stream.send(_TIME * SIZE)
            return float(struct.unpack("d56x", await stream.receive_exactly(SIZE))[0])

        yield step, cpu


@contextlib.asynccontextmanager
async def _calls(port: int, config: Config) -> AsyncIterator[tuple[Any, Any]]:
    async with rpc.connect("127.0.0.1", port, mode="rdma", config=config) as client:
        yield (
            lambda: client.call("shop.order", ORDER, returns=Order),
            lambda: client.call("shop.used", returns=float),
        )


# ---- both programs


def _never_sleep() -> None:
    """The running loop asks its sockets without a pause."""
    loop = asyncio.get_running_loop()

    def again() -> None:
        loop.call_soon(again)

    again()


def _config(awake: bool) -> Config:
    return Config.from_env(busy_poll_us=Config().busy_poll_us if awake else 0, mode="rdma")


async def serve(carrier: str, awake: bool, path: str) -> None:
    """Serve until standard input ends; prints the port, or 0."""
    async with contextlib.AsyncExitStack() as stack:
        port = 0
        if carrier == "stream":
            listener = await stack.enter_async_context(listen("127.0.0.1", 0, config=_config(awake)))
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            task = tasks.create_task(listener.serve(_echo_stream))
            stack.callback(task.cancel)
            port = listener.port
        elif carrier == "calls":
            server = await stack.enter_async_context(rpc.serve(shop, "127.0.0.1", 0, config=_config(awake)))
            port = server.port
        else:
            handler = _serve_orders if carrier.startswith("msgpack") else _echo_bytes
            if carrier.endswith("unix"):
                plain = await asyncio.start_unix_server(handler, path)
            else:
                plain = await asyncio.start_server(handler, "127.0.0.1", 0)
                port = plain.sockets[0].getsockname()[1]
            # Kept to the end: the collector would close a server that nothing refers to.
            stack.callback(plain.close)
            if awake:
                _never_sleep()
        with contextlib.suppress(BrokenPipeError):  # the demo has ended, and so does this
            os.write(1, b"%d\n" % port)
        await asyncio.to_thread(sys.stdin.read)


async def ask(carrier: str, awake: bool, path: str, port: int, seconds: float) -> None:
    """Prints microseconds: the median of a round trip, and the processor time of both ends for one."""
    if carrier == "stream":
        opened = _stream(port, _config(awake))
    elif carrier == "calls":
        opened = _calls(port, _config(awake))
    else:
        over = _orders_over if carrier.startswith("msgpack") else _bytes_over
        where = (
            asyncio.open_unix_connection(path)
            if carrier.endswith("unix")
            else asyncio.open_connection("127.0.0.1", port)
        )
        opened = over(where)
        if awake:
            _never_sleep()
    async with opened as (step, cpu):
        begun = perf_counter()
        for _ in range(WARM_UP):
            await step()
            if perf_counter() > begun + seconds / 2:
                break
        taken: list[float] = []
        there, here, begun = await cpu(), process_time(), perf_counter()
        before = begun
        while before - begun < seconds:
            await step()
            now = perf_counter()
            taken.append(now - before)
            before = now
        used = process_time() - here + await cpu() - there
    sys.stdout.write(f"{median(taken) * 1e6} {used / len(taken) * 1e6}\n")


def main(role: str, carrier: str, awake: str, path: str, *more: str) -> None:
    """One of the two programs."""
    end = (
        serve(carrier, awake == "awake", path)
        if role == "serve"
        else ask(carrier, awake == "awake", path, int(more[0]), float(more[1]))
    )
    try:
        import uvloop
    except ImportError:
        asyncio.run(end)
    else:
        uvloop.run(end)


if __name__ == "__main__":
    main(*sys.argv[1:])
