"""How StreamReader and StreamWriter on a ring end, as asyncio's on a socket: a broken link, a close."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.health import settle
from tests.private import needs

from .ring_streams import against_pipe, close, stream_pair

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.anyio


async def test_broken_link_raises_in_waiting_and_later_reads_and_in_drain() -> None:
    reader, writer, far = await against_pipe()
    task = asyncio.ensure_future(reader.readexactly(5))
    await settle()
    cause = OSError("link lost")
    far.break_with(cause)
    with pytest.raises(ConnectionResetError) as caught:
        await task
    assert caught.value.__cause__ is cause
    for operation in (reader.read(1), reader.readexactly(1), reader.readline(), writer.drain()):
        with pytest.raises(ConnectionResetError):
            await operation
    assert isinstance(reader.exception(), ConnectionResetError)
    with pytest.raises(ConnectionResetError):
        await writer.wait_closed()


@needs("_wait_for_data")
async def test_data_before_the_break_is_read_first(spin: bool) -> None:
    reader, writer, far = await against_pipe(spin=spin)
    far.try_send(b"last words")
    far.break_with(OSError("killed"))
    await settle()
    assert await reader.read(100) == b"last words"
    with pytest.raises(ConnectionResetError):
        await reader.read(100)
    await close(writer)


async def test_a_break_after_the_end_of_data_only_stops_writing(spin: bool) -> None:
    """A peer that finishes and exits: all it sent arrives, and no read raises."""
    reader, writer, far = await against_pipe(spin=spin)
    far.try_send(b"the answer")
    far.send_eof()
    far.break_with(OSError("the process is gone"))
    await settle()
    assert await reader.read() == b"the answer"
    assert await reader.read() == b""
    assert reader.at_eof()
    writer.write(b"thanks")
    await settle()
    with pytest.raises(ConnectionResetError, match="the process is gone"):
        await writer.drain()
    await close(writer)


@pytest.mark.parametrize("ring_bytes", [8, 65536])
async def test_break_in_the_middle_of_a_large_read(ring_bytes: int) -> None:
    reader, writer, far = await against_pipe(ring_bytes, limit=4)
    task = asyncio.ensure_future(reader.readexactly(100))
    far.try_send(b"part")
    await settle()
    far.break_with(OSError("killed"))
    with pytest.raises(ConnectionResetError):
        await task
    await close(writer)


async def test_drain_wakes_up_when_the_link_breaks() -> None:
    _, writer, far = await against_pipe(10)
    writer.transport.set_write_buffer_limits(high=5)
    writer.write(b"x" * 40)
    task = asyncio.ensure_future(writer.drain())
    await settle()
    far.break_with(OSError("killed"))
    with pytest.raises(ConnectionResetError):
        await task
    await close(writer)


async def test_close_keeps_what_has_arrived_and_ends_reads() -> None:
    reader, writer, far = await against_pipe()
    far.try_send(b"arrived")
    await settle()
    writer.close()
    far.try_send(b"too late")
    await writer.wait_closed()
    assert await reader.read() == b"arrived"
    assert reader.at_eof()
    waiting_reader, waiting_writer, _ = await against_pipe()
    task = asyncio.ensure_future(waiting_reader.read(1))
    await settle()
    waiting_writer.close()
    assert await task == b""


async def test_close_flushes() -> None:
    (_, writer), (peer_reader, peer) = await stream_pair(8)
    writer.write(b"x" * 100)
    writer.close()
    assert await peer_reader.read() == b"x" * 100
    await writer.wait_closed()
    peer.write(b"nobody is there")  # the write that meets the end is no error, as on TCP
    await peer.drain()
    peer.write(b"nobody is there")
    await settle()
    with pytest.raises(ConnectionError):
        await peer.drain()
    await close(peer)
