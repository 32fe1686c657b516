"""Behaviours of transports and of the callbacks of their protocols."""

from __future__ import annotations

from typing import Any

from .stage import KeepsOpen, Stage, attempt
from .table import behaviour


@behaviour
async def data_and_close(stage: Stage) -> None:
    """What is written before close() arrives, then EOF; each end loses its connection without an error."""
    near, _ = await stage.pair()
    near.transport.write(b"hello")
    near.transport.close()
    await stage.both_end()


@behaviour
async def close_of_the_server(stage: Stage) -> None:
    """The same from the accepting end."""
    near, far = await stage.pair()
    near.transport.write(b"request")
    await stage.until(lambda: far.data)
    far.transport.write(b"answer")
    far.transport.close()
    await stage.both_end()


@behaviour
async def close_twice(stage: Stage) -> None:
    """The second close() does nothing."""
    near, _ = await stage.pair()
    near.transport.close()
    near.transport.close()
    await stage.both_end()


@behaviour
async def close_is_never_inside(stage: Stage) -> None:
    """connection_lost() comes from the loop, not from close()."""
    near, _ = await stage.pair()
    near.transport.close()
    stage.note("lost inside close", near.ended)
    stage.note("closing", near.transport.is_closing())
    await stage.both_end()


@behaviour
async def abort_is_never_inside(stage: Stage) -> None:
    """connection_lost(None) comes from the loop, not from abort()."""
    near, _ = await stage.pair()
    near.transport.abort()
    stage.note("lost inside abort", near.ended)
    stage.note("closing", near.transport.is_closing())
    await stage.both_end()


@behaviour
async def abort_after_close(stage: Stage) -> None:
    """abort() after close() loses the connection once."""
    near, _ = await stage.pair()
    near.transport.close()
    near.transport.abort()
    await stage.both_end()
    await stage.turns()


@behaviour
async def half_close(stage: Stage) -> None:
    """After write_eof() the other end may answer, if its eof_received() returns true."""
    near, far = await stage.pair(far=KeepsOpen)
    near.transport.write(b"question")
    near.transport.write_eof()
    await stage.until(lambda: "eof" in far.events)
    far.transport.write(b"answer")
    far.transport.close()
    await stage.both_end()


@behaviour
async def eof_closes(stage: Stage) -> None:
    """eof_received() that returns None closes the transport: also the end that half-closed sees an EOF."""
    near, _ = await stage.pair()
    near.transport.write_eof()
    await stage.both_end()


@behaviour
async def write_after_eof(stage: Stage) -> None:
    """write() after write_eof() is an error, close() is not."""
    near, far = await stage.pair(far=KeepsOpen)
    near.transport.write_eof()
    stage.note("write", attempt(near.transport.write, b"x"))
    stage.note("empty write", attempt(near.transport.write, b""))
    stage.note("again", attempt(near.transport.write_eof))
    near.transport.close()
    await stage.until(lambda: near.ended and "eof" in far.events)


@behaviour
async def can_write_eof(stage: Stage) -> None:
    """A transport without TLS has a half-close."""
    near, far = await stage.pair()
    stage.note("can write eof", [near.transport.can_write_eof(), far.transport.can_write_eof()])


@behaviour
async def write_after_close(stage: Stage) -> None:
    """write() after close() does nothing."""
    near, far = await stage.pair()
    near.transport.write(b"before")
    near.transport.close()
    stage.note("write", attempt(near.transport.write, b"after"))
    await stage.both_end()
    stage.note("arrived", bytes(far.data))


@behaviour
async def kinds_of_buffers(stage: Stage) -> None:
    """write() takes bytes, bytearray and memoryview, also views of parts and empty ones."""
    near, far = await stage.pair()
    for data in (b"a", bytearray(b"b"), memoryview(b"xcx")[1:2], b"", bytearray(), memoryview(b""), b"d"):
        near.transport.write(data)
    near.transport.close()
    await stage.both_end()
    stage.note("arrived", bytes(far.data))


@behaviour
async def wrong_kinds_of_data(stage: Stage) -> None:
    """write() refuses what has no bytes, and the connection goes on."""
    near, far = await stage.pair()
    wrong: list[Any] = ["text", 7, None, [b"list"]]
    stage.note("errors", [attempt(near.transport.write, each) for each in wrong])
    near.transport.write(b"good")
    await stage.until(lambda: far.data)


@behaviour
async def changed_after_write(stage: Stage) -> None:
    """A bytearray belongs to the program again when write() has returned."""
    near, far = await stage.pair()
    data = bytearray(b"before")
    near.transport.write(data)
    data[:] = b"AFTER!"
    await stage.until(lambda: len(far.data) == 6)


@behaviour
async def lines(stage: Stage) -> None:
    """writelines() sends each part in order: of a list, a tuple, a generator, an empty list."""
    near, far = await stage.pair()
    near.transport.writelines([b"a", bytearray(b"b"), memoryview(b"c")])
    near.transport.writelines((b"", b"d"))
    near.transport.writelines(part for part in (b"e", b"f"))
    near.transport.writelines([])
    await stage.until(lambda: len(far.data) == 6)
