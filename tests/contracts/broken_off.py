"""Behaviours of answers that break off: whether a part of one may be taken for the whole."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any

from tests.roles import LOCAL

from .stage import Stage, outcome
from .streams import pair, result
from .table import behaviour
from .writing import _MUCH


@behaviour
async def a_reader_whose_peer_aborts_with_data_unread(stage: Stage) -> None:
    """Who aborts with something unread resets the connection: what had come is read, then an error."""
    (reader, writer), (_, far) = await pair(stage)
    aborting: Any = far.transport
    aborting.pause_reading()
    writer.write(b"unread")
    await stage.turns(30)
    far.write(b"half")
    stage.note("half", await reader.readexactly(4))
    aborting.abort()
    stage.note("read", await result(reader.read()))
    stage.note("closed", await outcome(writer.wait_closed()))


@behaviour
async def a_writer_that_aborts_much(stage: Stage) -> None:
    """abort() with much that waits: the peer has read a part only when its end comes."""
    (reader, _), (_, far) = await pair(stage)
    aborting: Any = far.transport
    far.write(bytes(_MUCH))
    await reader.readexactly(10)
    aborting.abort()
    got = 10
    end = ""
    while not end:
        part = await result(reader.read(1_000_000))
        got += len(part) if isinstance(part, bytes) else 0
        end = part if isinstance(part, str) else "" if part else "eof"
    stage.note("whole", got == _MUCH)
    stage.note("end", end)


@behaviour
async def a_handler_that_fails_in_the_midst(stage: Stage) -> None:
    """A handler that is a coroutine raises behind half of its answer: its connection ends, or stays, as
    Python has it.
    """
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(b"half of ")
        await writer.drain()
        raise ZeroDivisionError

    port = stage.keep(await stage.server.start_server(serve, LOCAL, 0))
    reader, writer = await stage.client.open_connection(LOCAL, port)
    stage.writers.append(writer)
    stage.note("half", await reader.readexactly(8))
    await stage.turns(30)
    gc.collect()
    await stage.turns(30)
    if sys.version_info >= (3, 12):  # before, asyncio's stays open, and those on aiordma end as later ones
        stage.note("closing", writers[0].is_closing())
    if not writers[0].is_closing():
        writers[0].close()
    stage.note("rest", await result(reader.read()))
