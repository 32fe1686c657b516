"""Behaviours of the handlers of start_server(): each has a task of its own, and fails alone."""

from __future__ import annotations

import array
import asyncio
import contextvars
import sys
from typing import Any

from tests.roles import LOCAL

from .escaping import KINDS
from .stage import Stage, attempt, outcome
from .streams import Streams, pair
from .table import behaviour


async def asked(stage: Stage, port: int, question: bytes) -> Streams:
    """A client that has said something."""
    streams: Streams = await stage.client.open_connection(LOCAL, port)
    stage.check_path(streams[1])
    stage.writers.append(streams[1])
    streams[1].write(question + b"\n")
    return streams


@behaviour
async def handlers_are_strangers(stage: Stage) -> None:
    """A task for each client: what one is given, its name, callbacks and context, no other one has."""
    variable = contextvars.ContextVar("variable", default=b"nobody's")
    tasks: list[Any] = []
    called: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task: Any = asyncio.current_task()
        stage.note("new", task not in tasks)
        tasks.append(task)
        name = await reader.readline()
        stage.note("before", (variable.get(), task.get_name() in ("one\n", "two\n"), task.cancelling()))
        variable.set(name)
        task.set_name(name.decode())
        task.add_done_callback(lambda _: called.append(name))
        writer.write(name)
        writer.close()

    port = stage.keep(await stage.server.start_server(serve, LOCAL, 0))
    for name in (b"one", b"two", b"three"):
        reader, writer = await asked(stage, port, name)
        stage.note("answer", await reader.read())
        writer.close()
        await stage.until(lambda: called[-1:] == [name + b"\n"])  # noqa: B023
    stage.note("names", [task.get_name() for task in tasks])
    stage.note("called", called)
    stage.note("outside", variable.get())


@behaviour
async def handlers_that_fail_beside_others(stage: Stage) -> None:
    """One that awaits a cancelled future, or raises what is no Exception: others go on, and new ones come."""
    writers: list[asyncio.StreamWriter] = []
    tasks: list[Any] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        tasks.append(asyncio.current_task())
        while question := await reader.readline():
            if question == b"cancelled\n":
                future = asyncio.get_running_loop().create_future()
                future.cancel()
                await future
            elif question[:1].isdigit():
                raise KINDS[int(question)]
            writer.write(question)

    port = stage.keep(await stage.server.start_server(serve, LOCAL, 0))
    beside = await asked(stage, port, b"first")
    stage.note("beside", await beside[0].readline())
    for question in (b"cancelled", *(b"%d" % number for number in range(len(KINDS)))):
        for _ in range(2):
            _, failing = await asked(stage, port, question)
            await stage.until(lambda: len(tasks) > 1 and tasks[-1].done())
            stage.note("failed", tasks[-1].cancelled() or type(tasks[-1].exception()).__name__)
            for each in (failing, writers[-1]):  # who closes it by itself is another matter: `broken_off.py`
                each.close()
                await outcome(each.wait_closed())
            del tasks[1:], writers[1:]
            beside[1].write(b"as ever\n")
            stage.note("beside", await beside[0].readline())
    for each in (beside[1], writers[0]):
        each.close()
        await outcome(each.wait_closed())
    await stage.until(tasks[0].done)
    stage.trace.pop("reported", None)  # by 3.11 when the collector comes


@behaviour
async def lines_of_a_writer(stage: Stage) -> None:
    """writelines() of a StreamWriter, of either end: all lines that have bytes, or none and a TypeError."""
    for role in (0, 1):
        ends = await pair(stage)
        (_, writer), (reader, far) = ends[role], ends[1 - role]
        doubles: Any = array.array("d", [1.0, 2.0])
        if sys.version_info >= (3, 12):  # asyncio counts its numbers, not its bytes, and fails
            doubles = memoryview(doubles).cast("B")
        wrong: list[Any] = [[5, bytes(70_000)]]
        if sys.version_info < (3, 15):  # as in `writing.py`
            wrong += [[bytes(70_000), "text"], [bytes(70_000), doubles, None]]
        stage.note("refused", [attempt(writer.writelines, lines) for lines in wrong])
        stage.note("taken", attempt(writer.writelines, [bytes(70_000), doubles, bytearray(b"!")]))
        writer.close()
        got = await reader.read()
        stage.note("arrived", (len(got), got[-17:]))
        far.close()
