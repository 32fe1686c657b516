"""Behaviours of what is cancelled, at each of its steps."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from tests.roles import LOCAL
from tests.streams.pairs import tls_contexts

from .stage import Stage, Traced, outcome
from .streams import pair, result
from .table import behaviour

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

#: Turns of the loop after which something is cancelled. A connection takes fewer of them, on TCP.
_STEPS = (0, 1, 2, 3, 5, 8, 13, 30)


async def cancelled_after(turns: int, begin: Callable[[], Awaitable[Any]]) -> Any:
    """What comes of it: the result, or the kind of its error."""

    async def work() -> Any:
        return await begin()

    task = asyncio.ensure_future(work())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    return await outcome(task)


@behaviour
async def connects_cancelled_at_each_step(stage: Stage) -> None:
    """Each connect ends as cancelled or with a connection, and the server serves the next client."""
    port = await stage.listen()
    kinds = set()
    for turns in _STEPS:
        made = await cancelled_after(turns, lambda: stage.client.create_connection(stage.near(), LOCAL, port))
        kinds.add(made if isinstance(made, str) else "connected")
        if not isinstance(made, str):
            made[0].abort()
    stage.note("kinds", kinds <= {"CancelledError", "connected"})
    last = await stage.connect(lambda: Traced(stage, "last"), port)
    last.transport.write(b"the last")
    await stage.until(lambda: any(each.data for each in stage.made("far")))
    last.transport.close()
    await stage.until(lambda: last.ended and all(each.ended for each in stage.made("far")))
    for near in stage.made("near"):
        near.ended = True  # uvloop does not always tell those that were cancelled
    stage.note("data", [bytes(each.data) for each in stage.made("far") if each.data])
    for end in ("near", "far"):
        stage.trace.pop(end, None)


@behaviour
async def opens_cancelled_at_each_step(stage: Stage) -> None:
    """The same of open_connection(), whose server's handlers all come to an end of their clients."""
    ended: list[bytes] = []
    begun: list[None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.append(None)
        data = b""
        with contextlib.suppress(ConnectionError):
            data = await reader.read()
        ended.append(data)
        writer.close()

    port = stage.keep(await stage.server.start_server(serve, LOCAL, 0))
    kinds = set()
    for turns in _STEPS:
        made = await cancelled_after(turns, lambda: stage.client.open_connection(LOCAL, port))
        kinds.add(made if isinstance(made, str) else "connected")
        if not isinstance(made, str):
            made[1].close()
    stage.note("kinds", kinds <= {"CancelledError", "connected"})
    _, writer = await stage.client.open_connection(LOCAL, port)
    stage.writers.append(writer)
    writer.write(b"the last")
    writer.close()
    await stage.until(lambda: b"the last" in ended and len(begun) == len(ended))
    stage.note("data", [data for data in ended if data])


@behaviour
async def listens_cancelled_at_each_step(stage: Stage) -> None:
    """A create_server() that is cancelled leaves no listener at its port."""
    server = await stage.server.create_server(stage.far(), LOCAL, 0)
    port = stage.keep(server)
    server.close()
    await server.wait_closed()
    for turns in _STEPS:
        made = await cancelled_after(turns, lambda: stage.server.create_server(stage.far(), LOCAL, port))
        if not isinstance(made, str):
            made.close()
            await made.wait_closed()
        elif made != "CancelledError":
            stage.note("error", made)
    stage.keep(await stage.server.create_server(stage.far(), LOCAL, port))
    near = await stage.connect(stage.near(), port)
    near.transport.close()
    await stage.until(lambda: near.ended and ("lost", None) in stage.trace.get("far", ()))


@behaviour
async def reads_cancelled_with_data_there(stage: Stage) -> None:
    """A read of any kind that is cancelled leaves what had come for the next one."""
    (reader, _), (_, writer) = await pair(stage, limit=65536)
    kinds: list[Callable[[], Awaitable[Any]]] = [
        reader.readline,
        lambda: reader.readuntil(b"--"),
        lambda: reader.readexactly(1000),
        lambda: reader.read(),
    ]
    for begin in kinds:
        read = asyncio.ensure_future(begin())
        await stage.turns(2)
        writer.write(b"part ")
        await stage.turns(10)
        read.cancel()
        stage.note("cancelled", await result(read))
    writer.write(b"end\n")
    stage.note("line", await reader.readline())


@behaviour
async def a_wait_for_data_that_is_timed_out(stage: Stage) -> None:
    """asyncio.timeout() around reads and drains ends them, and the streams go on."""
    (reader, writer), (far_reader, far_writer) = await pair(stage)

    async def wait() -> Any:
        async with asyncio.timeout(0):
            return await reader.readline()

    stage.note("read", await outcome(wait()))
    writer.write(bytes(16_000_000))

    async def drain() -> Any:
        async with asyncio.timeout(0):
            await writer.drain()

    stage.note("drain", await outcome(drain()))
    far_writer.write(b"line\n")
    stage.note("line", await reader.readline())
    stage.note("read", len(await far_reader.readexactly(16_000_000)))


@behaviour
async def start_tls_that_is_cancelled(stage: Stage) -> None:
    """The connection is closed, and its peer, which never began with TLS, comes to its end."""
    client, _ = tls_contexts()
    near, far = await stage.pair()
    starting = asyncio.ensure_future(
        stage.client.start_tls(near.transport, near, client, server_hostname="localhost")
    )
    await stage.until(lambda: far.data)
    starting.cancel()
    stage.note("cancelled", await outcome(starting))
    await stage.until(lambda: far.ended)
    stage.note("hello", far.data[0])
    stage.note("closing", near.transport.is_closing())
    del stage.trace["far"]  # how TLS ends: by what has been exchanged until then
    del stage.trace["near"]
    near.ended = True
