"""What a server's stream protocol does with its client_connected_cb."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from aiordma.compat.stream_reader import RingStreamReader
from aiordma.compat.stream_writer import AioRdmaStreamWriter
from aiordma.compat.streams import RingStreamReaderProtocol, ring_streams
from aiordma.testing.memory import memory_pipe_pair
from tests.health import settle

from .recorder import connect_pipe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.anyio

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def served() -> AsyncIterator[Callable[..., Any]]:
    """Connects a stream to a handler, as a server does."""
    writers: list[asyncio.StreamWriter] = []
    loop = asyncio.get_running_loop()

    async def connect(handler: Any, ring_bytes: int = 65536) -> Streams:
        near, far = memory_pipe_pair(ring_bytes)
        server_reader = RingStreamReader(65536, loop)
        connect_pipe(far, RingStreamReaderProtocol(server_reader, handler, loop))
        del server_reader
        reader, writer = ring_streams(near, 65536)
        writers.append(writer)
        return reader, writer

    yield connect
    for writer in writers:
        writer.close()
    await settle()


async def test_handler_that_is_a_coroutine(served: Callable[..., Any]) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert isinstance(writer, AioRdmaStreamWriter)
        while line := await reader.readline():
            writer.write(line.upper())
            await writer.drain()
        writer.close()

    reader, writer = await served(handler)
    writer.write(b"one\ntwo\n")
    writer.write_eof()
    assert await reader.read() == b"ONE\nTWO\n"


async def test_handler_that_is_a_plain_function(served: Callable[..., Any]) -> None:
    def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    reader, _ = await served(handler)
    assert await reader.read() == b"hello"


async def test_handler_that_fails_closes_its_connection(
    served: Callable[..., Any], reported: list[dict[str, Any]]
) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise ValueError("handler")

    reader, _ = await served(handler)
    assert await reader.read() == b""
    assert [str(context["exception"]) for context in reported] == ["handler"]


async def test_plain_function_that_fails_closes_its_connection(
    served: Callable[..., Any], reported: list[dict[str, Any]]
) -> None:
    def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise ValueError("handler")

    reader, _ = await served(handler)
    assert await reader.read() == b""
    assert [str(context["exception"]) for context in reported] == ["handler"]
    assert [context["message"] for context in reported] == ["Unhandled exception in client_connected_cb"]


async def test_a_writer_goes_by_asyncio_s_name(served: Callable[..., Any]) -> None:
    _, writer = await served(lambda _, theirs: theirs.close())
    assert repr(writer).startswith("<StreamWriter transport=<RingTransport")


async def test_handler_that_is_cancelled_closes_its_connection(
    served: Callable[..., Any], reported: list[dict[str, Any]]
) -> None:
    tasks: list[Any] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        await reader.read(1)

    reader, _ = await served(handler)
    await settle()
    tasks[0].cancel()
    assert await reader.read() == b""
    assert reported == []
    await settle()
    assert tasks[0] not in asyncio.all_tasks()
