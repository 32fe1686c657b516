"""Both ends of a conversation in one process, for `counted.py`: `python -m benchmarks.countable ROW SECONDS`.

It says "ready", waits for a line, works for that long, says what it did as JSON, and waits for a line again.
Both ends are on one loop, so that nobody waits for a CPU, and what is counted is the work alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import resource
import sys
import time
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

from anyio.abc import SocketAttribute

from aiordma.measure.loops import repeat

from .peers import PEERS
from .peers.base import HOST
from .workloads.calls import IN_FLIGHT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    #: Works until that time of `time.perf_counter()`; says how many operations that were.
    Work = Callable[[float], Awaitable[int]]

MESSAGE = b"x" * 64
#: Operations between two looks at the clock.
CHUNK = 50


class Row(NamedTuple):
    """What is counted."""

    title: str
    opened: Callable[[], contextlib.AbstractAsyncContextManager[Work]]
    environment: dict[str, str]


# ---- both ends awake: the task of each finds what the other has sent, and no loop takes a turn


async def _by_turns(
    until: float,
    there: tuple[Callable[[bytes], Awaitable[object]], Callable[[int], Awaitable[bytes]]],
    back: tuple[Callable[[bytes], Awaitable[object]], Callable[[int], Awaitable[bytes]]],
) -> int:
    (send, receive), (answer, take), size = there, back, len(MESSAGE)
    count = 0
    while time.perf_counter() < until:
        for _ in range(CHUNK):
            await send(MESSAGE)
            await answer(await take(size))
            await receive(size)
        count += CHUNK
    return count


@contextlib.asynccontextmanager
async def awaits_alone() -> AsyncIterator[Work]:
    """The program's own part: what it awaits is there already, and is no coroutine."""
    done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    done.set_result(MESSAGE)
    end = {MESSAGE: done}.__getitem__, {len(MESSAGE): done}.__getitem__
    yield lambda until: _by_turns(until, end, end)


@contextlib.asynccontextmanager
async def empty_coroutines() -> AsyncIterator[Work]:
    """The same with methods that are coroutines, as those of each stream of anyio, and do nothing."""

    class Nothing:
        async def send(self, item: bytes) -> None:
            pass

        async def receive(self, max_bytes: int = 65536) -> bytes:
            return MESSAGE

    end = Nothing().send, Nothing().receive
    yield lambda until: _by_turns(until, end, end)


@contextlib.asynccontextmanager
async def awake_streams() -> AsyncIterator[Work]:
    import aiordma

    theirs: asyncio.Future[aiordma.RdmaStream] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def handle(stream: aiordma.RdmaStream) -> None:
        theirs.set_result(stream)
        await over.wait()

    async with aiordma.listen(HOST, 0) as listener:
        serving = asyncio.create_task(listener.serve(handle))
        async with aiordma.connect(HOST, listener.extra(SocketAttribute.local_port)) as ours:
            other = await theirs
            _check(ours.path)
            ends = (ours.send, ours.receive), (other.send, other.receive)
            yield lambda until: _by_turns(until, *ends)
            over.set()
        await _ended(serving)


@contextlib.asynccontextmanager
async def awake_writers() -> AsyncIterator[Work]:
    import aiordma

    theirs: asyncio.Future[tuple[Any, Any]] = asyncio.get_running_loop().create_future()

    def handle(reader: Any, writer: Any) -> None:
        theirs.set_result((reader, writer))

    def end(reader: Any, writer: Any) -> Any:
        def send(message: bytes) -> Awaitable[None]:
            writer.write(message)
            drained: Awaitable[None] = writer.drain()
            return drained

        return send, reader.readexactly

    server: Any = await aiordma.start_server(handle, HOST, 0)
    reader, writer = await aiordma.open_connection(HOST, server.sockets[0].getsockname()[1])
    other = await theirs
    _check(writer.get_extra_info("aiordma.path"))
    ends = end(reader, writer), end(*other)
    yield lambda until: _by_turns(until, *ends)
    writer.close()
    other[1].close()
    server.close()


# ---- peers of the benchmark: an echo server and a client, each with a turn of the loop for a message


def _check(path: str | None, wanted: str = "rdma") -> None:
    if path != wanted:
        raise RuntimeError(f"it went by {path}, not by {wanted}")


async def _ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})


def _peer(name: str, in_flight: int = 1) -> Callable[[], contextlib.AbstractAsyncContextManager[Work]]:
    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[Work]:
        peer = PEERS[name]
        transport = peer.transport()
        address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(transport.serve(address.set_result))
        connection = await transport.connect(await address)
        if peer.path is not None:
            _check(connection.path, peer.path)
        if hasattr(connection, "ping"):
            await connection.start_echo(len(MESSAGE))
            yield lambda until: _pings(connection, until)
        else:
            yield lambda until: _calls(lambda: connection.echo(MESSAGE), in_flight, until)
        await connection.close()
        await _ended(serving)

    return opened


async def _pings(connection: Any, until: float) -> int:
    taken = array("d")
    await connection.ping(len(MESSAGE), until, taken)
    return len(taken)


async def _calls(call: Callable[[], Awaitable[object]], in_flight: int, until: float) -> int:
    taken = array("d")
    async with asyncio.TaskGroup() as tasks:
        for _ in range(in_flight):
            tasks.create_task(repeat(call, taken, until))
    return len(taken)


@contextlib.asynccontextmanager
async def least_calls() -> AsyncIterator[Work]:
    """Of a call among others in flight: a task for its handler, a coroutine, and a future for its caller."""
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    async def handle(message: bytes, answered: asyncio.Future[bytes]) -> None:
        answered.set_result(message)

    def call() -> asyncio.Future[bytes]:
        answered: asyncio.Future[bytes] = loop.create_future()
        tasks.add(task := loop.create_task(handle(MESSAGE, answered)))
        task.add_done_callback(tasks.discard)
        return answered

    yield lambda until: _calls(call, IN_FLIGHT, until)


_EVENTS = {"AIORDMA_BUSY_POLL_US": "0"}

ROWS: dict[str, Row] = {
    "alone": Row("the program alone, with nothing to await", awaits_alone, {}),
    "coroutines": Row("the same with four coroutines that do nothing", empty_coroutines, {}),
    "streams": Row("aiordma streams, both ends awake", awake_streams, {}),
    "writers": Row("aiordma StreamWriter, both ends awake", awake_writers, {}),
    "streams-events": Row("aiordma streams, events only", _peer("stream-events-uvloop"), _EVENTS),
    "writers-events": Row("aiordma StreamWriter, events only", _peer("writer-events-uvloop"), _EVENTS),
    "unix": Row("uvloop Unix streams", _peer("unix-uvloop"), {}),
    "tcp": Row("uvloop TCP streams", _peer("tcp-uvloop"), {}),
    "least-calls": Row("64 in flight: a task and a future for each call, nothing else", least_calls, {}),
    "calls": Row("64 in flight: aiordma calls", _peer("rpc-bare-uvloop", IN_FLIGHT), {}),
    "calls-def": Row("64 in flight: aiordma calls, def handler", _peer("rpc-def-uvloop", IN_FLIGHT), {}),
    "msgpack": Row("64 in flight: msgpack over streams", _peer("msgpack-uvloop", IN_FLIGHT), {}),
    "grpclib": Row("one at a time: grpclib on TCP", _peer("grpclib-uvloop"), {}),
}


def _gate(message: object) -> None:
    print(json.dumps(message), flush=True)
    sys.stdin.readline()


async def _main(row: Row, seconds: float) -> None:
    async with row.opened() as work:
        await work(time.perf_counter() + seconds / 4)
        # A whole collection takes as long as thousands of operations, and comes once in many more.
        gc.collect()
        gc.freeze()
        _gate("ready")
        before = resource.getrusage(resource.RUSAGE_SELF)
        count = await work(time.perf_counter() + seconds)
        after = resource.getrusage(resource.RUSAGE_SELF)
        user, kernel = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
        _gate({"count": count, "user_us": user / count * 1e6, "kernel_us": kernel / count * 1e6})


def main() -> None:
    import uvloop

    parser = argparse.ArgumentParser(prog="benchmarks.countable")
    parser.add_argument("row", choices=[*ROWS])
    parser.add_argument("seconds", type=float)
    parser.add_argument(
        "--slow", action="store_true", help="a tool makes it slower, so time counts for nothing"
    )
    options = parser.parse_args()
    row = ROWS[options.row]
    os.environ.update(row.environment)
    if options.slow:
        from aiordma.wake import turns

        # A stream that was busy for a millisecond lets others of the loop run: here, every few messages.
        turns._SHARE_NS = 1 << 60
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main(row, options.seconds))


if __name__ == "__main__":
    main()
