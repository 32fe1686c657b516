"""Behaviours of one write after the peer's end: TCP takes it, and what the peer had sent is still read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.roles import LOCAL
from tests.streams.pairs import tls_contexts

from .inside_tls import each_way
from .stage import Buffered, KeepsOpen, Stage, Traced, outcome
from .streams import Streams, pair, result
from .table import behaviour

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .inside_tls import Pairs

_REFUSAL = b"no, thank you"


class BufferedKeepsOpen(Buffered):
    """Goes on writing after the peer's EOF."""

    def eof_received(self) -> bool:
        self.events.append("eof")
        return True


def by_each_end(function: Callable[[Stage, str], Awaitable[None]]) -> None:
    """Enter it in the table twice: the client writes in vain, and the server does (`..._by_the_server`)."""
    for writer, suffix in (("near", ""), ("far", "_by_the_server")):

        async def play(stage: Stage, writer: str = writer) -> None:
            await function(stage, writer)

        play.__name__ = function.__name__ + suffix
        play.__doc__ = function.__doc__
        behaviour(play)


async def protocols(stage: Stage, writer: str, kind: type[Any]) -> tuple[Any, Any]:
    """The end that writes in vain, and its peer, which closes first."""
    if writer == "near":
        return await stage.pair(kind, Traced)
    closes, writes = await stage.pair(Traced, kind)
    return writes, closes


async def streams(stage: Stage, writer: str) -> tuple[Streams, Streams]:
    near, far = await pair(stage)
    return (near, far) if writer == "near" else (far, near)


async def refuse(stage: Stage, closes: Any) -> None:
    """Send, close, and be gone from the loop and from the kernel."""
    closes.transport.write(_REFUSAL)
    closes.transport.close()
    await stage.until(lambda: closes.ended)
    await stage.turns()


async def to_one_that_has_read_nothing(stage: Stage, writer: str, kind: type[Any], data: Any) -> None:
    writes, closes = await protocols(stage, writer, kind)
    writes.transport.pause_reading()
    await refuse(stage, closes)
    writes.transport.write(data)
    await stage.turns()
    writes.transport.resume_reading()
    await stage.until(lambda: "eof" in writes.events)
    await stage.turns()


@by_each_end
async def what_came_before_a_write_in_vain(stage: Stage, writer: str) -> None:
    """What the peer had sent is read after a write that it does not want, and its end is one in order."""
    await to_one_that_has_read_nothing(stage, writer, Traced, b"more of it")


@by_each_end
async def what_came_before_a_write_in_vain_to_one_that_keeps_open(stage: Stage, writer: str) -> None:
    """The same where eof_received() returns true: the transport stays open."""
    await to_one_that_has_read_nothing(stage, writer, KeepsOpen, memoryview(b"more of it"))


@by_each_end
async def what_came_before_a_write_in_vain_in_a_buffer(stage: Stage, writer: str) -> None:
    """The same of a BufferedProtocol."""
    await to_one_that_has_read_nothing(stage, writer, BufferedKeepsOpen, bytearray(b"more of it"))


@by_each_end
async def one_write_after_eof_was_seen(stage: Stage, writer: str) -> None:
    """Where eof_received() has returned true, the peer being gone, one write is no error yet."""
    writes, closes = await protocols(stage, writer, KeepsOpen)
    await refuse(stage, closes)
    await stage.until(lambda: "eof" in writes.events)
    writes.transport.write(b"more of it")
    await stage.turns(50)
    stage.note("closing", writes.transport.is_closing())


@by_each_end
async def lines_after_eof_was_seen(stage: Stage, writer: str) -> None:
    """writelines() of much is one write as well; the next one ends the connection, by an error."""
    writes, closes = await protocols(stage, writer, KeepsOpen)
    await refuse(stage, closes)
    await stage.until(lambda: "eof" in writes.events)
    writes.transport.writelines([bytes(70_000), bytes(70_000)])
    await stage.turns(50)
    stage.note("closing", writes.transport.is_closing())
    while not writes.ended:
        writes.transport.write(b"and more")
        await stage.turns()
    stage.note("failed", writes.events.pop()[1] in ("ConnectionResetError", "BrokenPipeError"))


@by_each_end
async def a_write_after_eof_of_a_peer_that_aborts(stage: Stage, writer: str) -> None:
    """Whose peer half-closes, and aborts with data unread: what had come is kept, a write ends it."""
    (reader, writes), (_, closes) = await streams(stage, writer)
    closes.write(_REFUSAL)
    closes.write_eof()
    stage.note("read", await result(reader.read()))
    closing: Any = closes.transport
    closing.pause_reading()
    writes.write(b"unread")
    await stage.turns()
    closing.abort()
    await stage.turns(50)
    while not writes.is_closing():
        writes.write(b"and more")
        await stage.turns()
    stage.note("drain", await outcome(writes.drain()) in ("ConnectionResetError", "BrokenPipeError"))


@each_way
async def one_write_after_eof(stage: Stage, pairs: Pairs) -> None:
    """Inside TLS an end has closed itself with its peer's EOF, and a write is nothing."""
    near, far = await pairs(stage)
    far.transport.write(_REFUSAL)
    far.transport.close()
    await stage.until(lambda: "eof" in near.events)
    near.transport.write(b"more of it")
    await stage.both_end()
    stage.note("read", bytes(near.data))
    for end in (near, far):
        end.events[:] = [event for event in end.events if event != "eof"]


@by_each_end
async def what_a_reader_holds_after_a_write_in_vain(stage: Stage, writer: str) -> None:
    """A StreamReader gives what had come, and b"" for ever, after one write and drain() in vain."""
    (reader, writes), (_, closes) = await streams(stage, writer)
    closes.write(_REFUSAL)
    closes.close()
    await closes.wait_closed()
    await stage.turns()
    writes.write(b"more of it")
    stage.note("drain", await outcome(writes.drain()))
    await stage.turns(50)
    stage.note("read", [await result(reader.read()), await result(reader.read())])
    writes.close()


@by_each_end
async def a_reader_that_waits_during_a_write_in_vain(stage: Stage, writer: str) -> None:
    """A read that waits meanwhile returns what comes, and the end."""
    (reader, writes), (_, closes) = await streams(stage, writer)
    reading = asyncio.ensure_future(result(reader.read()))
    await stage.turns()
    closes.write(_REFUSAL)
    closes.close()
    await closes.wait_closed()
    writes.write(b"more of it")
    stage.note("drain", await outcome(writes.drain()))
    stage.note("read", await reading)
    writes.close()


@by_each_end
async def what_a_reader_of_tls_holds_after_a_write_in_vain(stage: Stage, writer: str) -> None:
    """The same inside TLS, of aiordma's or the loop's."""
    client, server = tls_contexts()
    accepted: list[Streams] = []
    listening = await stage.server.start_server(
        lambda r, w: accepted.append((r, w)), LOCAL, 0, ssl=server, **stage.server.own_tls()
    )
    near = await stage.client.open_connection(
        LOCAL, stage.keep(listening), ssl=client, **stage.client.own_tls()
    )
    await stage.until(lambda: accepted)
    stage.writers += [near[1], accepted[0][1]]
    reader: Any
    (reader, writes), (_, closes) = (near, accepted[0]) if writer == "near" else (accepted[0], near)
    closes.write(_REFUSAL)
    closes.close()
    await stage.until(lambda: reader.at_eof() or bool(reader._buffer))
    writes.write(b"more of it")
    stage.note("drain", await outcome(writes.drain()))
    stage.note("read", [await result(reader.read()), await result(reader.read())])


@behaviour
async def an_upload_that_is_refused_early(stage: Stage) -> None:
    """A server of HTTP answers 413 to the head of an upload and closes: its client reads the answer whole."""
    answer = b"HTTP/1.1 413 Content Too Large\r\nconnection: close\r\ncontent-length: 8\r\n\r\ntoo much"
    refused = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()
        await writer.wait_closed()
        refused.set()

    port = stage.keep(await stage.server.start_server(serve, LOCAL, 0))
    reader, writer = await stage.client.open_connection(LOCAL, port)
    stage.check_path(writer)
    stage.writers.append(writer)
    writer.write(b"POST /upload HTTP/1.1\r\nhost: here\r\ncontent-length: 100000\r\n\r\n")
    stage.note("head", await outcome(writer.drain()))
    await refused.wait()
    writer.write(bytes(100_000))
    stage.note("body", await outcome(writer.drain()))
    stage.note("status", await result(reader.readline()))
    stage.note("headers", await result(reader.readuntil(b"\r\n\r\n")))
    stage.note("text", await result(reader.readexactly(8)))
    stage.note("end", await result(reader.read()))
    writer.close()
