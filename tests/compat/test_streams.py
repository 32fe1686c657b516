"""StreamReader and StreamWriter on a ring behave as asyncio's on a socket."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aiordma.compat.stream_reader import RingStreamReader
from aiordma.compat.streams import ring_streams
from aiordma.compat.transport import RingTransport
from aiordma.testing.memory import memory_pipe_pair
from tests.health import settle
from tests.private import needs

from .recorder import connect_pipe
from .ring_streams import against_pipe, close, stream_pair

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio


async def test_types_are_asyncios_own() -> None:
    reader, writer, _ = await against_pipe()
    assert isinstance(reader, asyncio.StreamReader)
    assert isinstance(writer, asyncio.StreamWriter)
    assert isinstance(writer.transport.get_protocol(), asyncio.StreamReaderProtocol)
    coroutine = reader.read(1)
    assert asyncio.iscoroutine(coroutine)
    coroutine.close()
    assert writer.can_write_eof()
    assert not writer.is_closing()
    assert writer.get_extra_info("aiordma.path") == "rdma"
    await close(writer)


async def test_every_way_of_reading(spin: bool) -> None:
    reader, writer, far = await against_pipe(spin=spin)
    far.try_send(b"0123456789first line\nsecond line\nEND;rest")
    await settle()
    assert await reader.readexactly(4) == b"0123"
    assert await reader.read(6) == b"456789"
    assert await reader.readline() == b"first line\n"
    assert await reader.readuntil(b"END;") == b"second line\nEND;"
    assert await reader.read(0) == b""
    assert await reader.readexactly(0) == b""
    far.try_send(b"\nlast\nwithout end")
    far.send_eof()
    assert [line async for line in reader] == [b"rest\n", b"last\n", b"without end"]
    assert reader.at_eof()
    assert await reader.read() == b""
    assert await reader.read(5) == b""
    assert await reader.readline() == b""
    with pytest.raises(asyncio.IncompleteReadError):
        await reader.readexactly(1)
    assert not writer.is_closing()  # half-closed by the peer only
    await close(writer)


async def test_reads_wait_for_data(spin: bool) -> None:
    reader, writer, far = await against_pipe(16, spin=spin)
    operations: list[tuple[Callable[[], Any], bytes]] = [
        (lambda: reader.read(100), b"abc"),
        (lambda: reader.readexactly(3), b"abc"),
        (lambda: reader.readuntil(b"c"), b"abc"),
    ]
    for operation, data in operations:
        task = asyncio.ensure_future(operation())
        await settle()
        assert not task.done()
        far.try_send(data[:1])
        if data[:1] and operation is not operations[0][0]:
            await settle()
            assert not task.done()
            far.try_send(data[1:])
            assert await task == data
        else:
            assert await task == data[:1]
    await close(writer)


@needs("_wait_for_data")
async def test_data_that_comes_while_a_reader_parks_wakes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parking polls once more, and announces what that finds before the task waits."""
    reader, writer, far = await against_pipe(delivery="immediate")
    park = RingTransport.park_reading

    def park_and_find(transport: RingTransport) -> None:
        park(transport)
        far.try_send(b"x;")

    monkeypatch.setattr(RingTransport, "park_reading", park_and_find)
    with anyio.fail_after(20):
        assert await reader.read(2) == b"x;"
        assert await reader.readexactly(2) == b"x;"
        assert await reader.readuntil(b";") == b"x;"
    await close(writer)


async def test_read_to_the_end(spin: bool) -> None:
    (reader, writer), (_, peer) = await stream_pair(100, limit=64, spin=spin)
    data = bytes(range(256)) * 20
    peer.write(data)
    peer.write_eof()
    assert await reader.read() == data
    await close(writer, peer)


@pytest.mark.parametrize("ring_bytes", [1, 7, 4096])
async def test_large_transfers_through_tiny_rings_both_ways(ring_bytes: int, spin: bool) -> None:
    (reader, writer), (other_reader, other_writer) = await stream_pair(ring_bytes, limit=1000, spin=spin)
    size = 3000 * min(ring_bytes, 200)
    data = bytes(i * 7 % 251 for i in range(size))

    async def send(writer: asyncio.StreamWriter) -> None:
        for start in range(0, len(data), 997):
            writer.write(data[start : start + 997])
            await writer.drain()
        writer.write_eof()

    async def receive(reader: asyncio.StreamReader, step: int) -> bytes:
        parts = [await reader.readexactly(min(step, size - start)) for start in range(0, size, step)]
        assert await reader.read(1) == b""
        return b"".join(parts)

    with anyio.fail_after(30):
        _, _, one, other = await asyncio.gather(
            send(writer), send(other_writer), receive(reader, 5000), receive(other_reader, 333)
        )
    assert one == other == data
    await close(writer, other_writer)


@pytest.mark.parametrize("block_bytes", [100, 1 << 24])
async def test_readexactly_of_more_than_limit_and_ring(
    block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiordma.compat.stream_reader._BLOCK_BYTES", block_bytes)
    (reader, writer), (_, peer) = await stream_pair(1000, limit=100)
    data = bytes(range(250)) * 1000
    peer.write(data)
    assert await reader.readexactly(200_000) == data[:200_000]
    assert await reader.readexactly(50_000) == data[200_000:]
    peer.write(b"short")
    peer.write_eof()
    with pytest.raises(asyncio.IncompleteReadError) as caught:
        await reader.readexactly(5000)
    assert caught.value.partial == b"short"
    assert caught.value.expected == 5000
    assert reader.at_eof()
    await close(writer, peer)


async def test_a_claimed_length_costs_no_memory() -> None:
    reader, writer, far = await against_pipe()
    task = asyncio.ensure_future(reader.readexactly(1 << 62))
    far.try_send(b"not that much")
    far.send_eof()
    with pytest.raises(asyncio.IncompleteReadError) as caught:
        await task
    assert caught.value.partial == b"not that much"
    await close(writer)


@needs("_buffer")
async def test_the_buffer_is_what_others_expect() -> None:
    """Some libraries inspect the buffer, and some consume from it."""
    reader, writer, far = await against_pipe(64, limit=8)
    buffer: Any = reader
    assert len(buffer._buffer) == 0
    far.try_send(b"arrived")
    await settle()
    assert buffer._buffer == b"arrived"
    far.try_send(b" more than twice the limit")
    await settle()
    assert buffer._buffer == b"arrived more tha"  # 2 * limit, where asyncio would pause its transport
    assert "16 bytes" in repr(reader)
    del buffer._buffer[:8]
    assert await reader.readexactly(2) == b"mo"
    rest = b""
    while len(rest) < 23:
        rest += await reader.read(100)
    assert rest == b"re than twice the limit"
    far.send_eof()
    await settle()
    assert reader.at_eof()
    await close(writer)


async def test_looking_into_the_buffer_while_a_large_read_is_under_way() -> None:
    reader, writer, far = await against_pipe(64, limit=8)
    task = asyncio.ensure_future(reader.readexactly(20))
    await settle()
    far.try_send(b"01234")
    await settle()
    far.try_send(b"56789")
    far.try_send(b"abcdefghijKL")
    await settle(1)
    buffer: Any = reader
    len(buffer._buffer)
    assert await task == b"0123456789abcdefghij"
    assert await reader.read(10) == b"KL"
    await close(writer)


async def test_limits_of_readuntil_and_readline(spin: bool) -> None:
    reader, writer, far = await against_pipe(256, limit=8, spin=spin)
    far.try_send(b"0123456789;tail\n")
    await settle()
    with pytest.raises(asyncio.LimitOverrunError, match="longer than limit") as caught:
        await reader.readuntil(b";")
    assert caught.value.consumed == 10
    assert await reader.readexactly(11) == b"0123456789;"  # the data is still there
    assert await reader.readline() == b"tail\n"
    far.try_send(b"0123456789\nnext\n")
    await settle()
    with pytest.raises(ValueError, match="longer than limit"):
        await reader.readline()
    assert await reader.readline() == b"next\n"  # the long line is gone
    far.try_send(b"x" * 50)
    await settle()
    with pytest.raises(asyncio.LimitOverrunError, match="exceed the limit"):
        await reader.readuntil(b";")
    with pytest.raises(ValueError, match="at least one-byte"):
        await reader.readuntil(b"")
    with pytest.raises(ValueError, match="less than zero"):
        await reader.readexactly(-1)
    await close(writer)


async def test_a_second_waiting_reader_is_refused(spin: bool) -> None:
    reader, writer, far = await against_pipe(spin=spin)
    first = asyncio.ensure_future(reader.read(10))
    await settle()
    for operation in (reader.read(1), reader.readexactly(1), reader.readline()):
        with pytest.raises(RuntimeError, match="already waiting"):
            await operation
    far.try_send(b"for the first")
    assert await first == b"for the fi"
    await close(writer)


@pytest.mark.parametrize("how", ["read", "readexactly", "readexactly large", "readuntil", "readline"])
async def test_cancelled_reads_lose_nothing(how: str, spin: bool) -> None:
    reader, writer, far = await against_pipe(64, limit=20, spin=spin)
    operations: dict[str, Callable[[], Any]] = {
        "read": lambda: reader.read(10),
        "readexactly": lambda: reader.readexactly(10),
        "readexactly large": lambda: reader.readexactly(50),
        "readuntil": lambda: reader.readuntil(b";"),
        "readline": lambda: reader.readline(),
    }
    sent = bytearray()
    for piece in (b"", b"abc", b"defg"):
        if how == "read" and piece:
            break  # it would not block
        far.try_send(piece)
        sent += piece
        task = asyncio.ensure_future(operations[how]())
        await settle()
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    far.try_send(b"END")
    await settle()
    assert await reader.readexactly(len(sent) + 3) == sent + b"END"
    await close(writer)


async def test_data_that_comes_with_the_cancellation_stays() -> None:
    reader, writer, far = await against_pipe()
    task = asyncio.ensure_future(reader.read(10))
    await settle()
    far.try_send(b"precious")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await reader.read(10) == b"precious"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0)
    await close(writer)


@pytest.fixture(params=[True, False], ids=["pulling", "asyncio's"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that pull from the ring, or asyncio's own, as where private interfaces are switched off."""
    if not request.param:
        monkeypatch.setattr("aiordma.compat.streams._AS_EXPECTED", False)


@pytest.mark.usefixtures("either")
async def test_writing_much_before_reading_does_not_deadlock(spin: bool) -> None:
    """On TCP the buffers of the kernel make this work, up to a few MiB."""
    (reader, writer), (peer_reader, peer) = await stream_pair(4096, spin=spin)

    async def echo() -> None:
        while data := await peer_reader.read(10_000):
            peer.write(data)
            await peer.drain()

    task = asyncio.ensure_future(echo())
    data = bytes(range(256)) * 8192
    with anyio.fail_after(30):
        for _ in range(2):
            writer.write(data)
            await writer.drain()
            assert await reader.readexactly(len(data)) == data
        writer.write_eof()
        await task
    await close(writer, peer)


@needs("_wait_for_data")
async def test_reading_ahead_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiordma.compat.stream_reader._READ_AHEAD_BYTES", 1000)
    reader, writer, far = await against_pipe(64)
    writer.transport.set_write_buffer_limits(high=10)
    assert far.try_send(b"x" * 100) == 64
    await settle()
    assert far.writable == 0
    writer.write(b"y" * 200)
    sent = 64
    for _ in range(100):
        await settle(2)
        sent += far.try_send(b"x" * 64)
    assert sent == 1064  # and the ring
    far_got = 0
    while far_got < 200:
        far_got += len(far.try_receive(100) or b"")
        await settle(2)
    assert await reader.readexactly(1064) == b"x" * 1064
    await close(writer)


async def test_reading_ahead_of_asyncio_s_reader_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiordma.compat.streams._AS_EXPECTED", False)
    monkeypatch.setattr("aiordma.compat.reading._READ_AHEAD_BYTES", 1000)
    reader, writer, far = await against_pipe(64, limit=20)
    writer.transport.set_write_buffer_limits(high=10)
    sent = 0
    for _ in range(10):
        await settle(2)
        sent += far.try_send(b"x" * 64)
    assert sent < 300  # twice the limit, a piece more, and the ring
    writer.write(b"y" * 200)
    for _ in range(100):
        await settle(2)
        sent += far.try_send(b"x" * 64)
    assert 1000 < sent < 1300
    far_got = 0
    while far_got < 200:
        far_got += len(far.try_receive(100) or b"")
        await settle(2)
    assert await reader.readexactly(sent) == b"x" * sent
    await close(writer)


@needs("_drain_helper")
async def test_drain_costs_no_iteration_unless_paused() -> None:
    reader, writer, far = await against_pipe(64)
    turns = 0

    def tick() -> None:
        nonlocal turns
        turns += 1

    asyncio.get_running_loop().call_soon(tick)
    for _ in range(10):
        writer.write(b"x")
        await writer.drain()
    assert turns == 0
    assert isinstance(reader, RingStreamReader)
    await settle()
    assert far.try_receive(64) == b"x" * 10
    await close(writer)


async def test_drain_waits_while_paused_and_can_be_cancelled(spin: bool) -> None:
    _, writer, far = await against_pipe(10, spin=spin)
    writer.transport.set_write_buffer_limits(high=5)
    writer.write(b"x" * 40)
    drains = [asyncio.ensure_future(writer.drain()) for _ in range(3)]
    await settle()
    assert not any(drain.done() for drain in drains)
    drains[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await drains[1]
    got = bytearray()
    with anyio.fail_after(20):
        while len(got) < 40:
            got += far.try_receive(10) or b""
            await asyncio.sleep(0)
        await drains[0]
        await drains[2]
    await close(writer)


async def test_drain_polls_before_it_parks() -> None:
    _, writer, far = await against_pipe(10, spin=True)
    writer.transport.set_write_buffer_limits(high=5)
    writer.write(b"x" * 20)
    await settle()
    assert far.try_receive(10) == b"x" * 10
    await writer.drain()  # finds the credit by itself
    await close(writer)


async def test_a_lonely_loop_of_fast_operations_lets_others_run() -> None:
    """Both ends always find data, so neither ever parks."""
    near, far = memory_pipe_pair(64, delivery="immediate")
    reader, writer = ring_streams(near, 64)
    peer_reader, peer = ring_streams(far, 64)
    ran = asyncio.Event()
    asyncio.get_running_loop().call_soon(ran.set)
    for operation in (reader.readexactly, reader.read, lambda n: reader.readuntil(b"e")):
        ran.clear()
        asyncio.get_running_loop().call_soon(ran.set)
        for _ in range(100_000):
            peer.write(b"round trip e"[:1] + b"e")
            await peer.drain()
            await operation(2)
            if ran.is_set():
                break
        assert ran.is_set()
    assert peer_reader is not None
    await close(writer, peer)


async def test_pause_reading_by_the_user() -> None:
    reader, writer, far = await against_pipe()
    transport: Any = writer.transport
    transport.pause_reading()
    far.try_send(b"held back")
    far.send_eof()
    task = asyncio.ensure_future(reader.read(100))
    await settle()
    assert not task.done()
    transport.resume_reading()
    assert await task == b"held back"
    assert await reader.read(100) == b""
    await close(writer)


async def test_set_protocol_takes_the_ring_away_from_the_reader() -> None:
    class Upgraded(asyncio.Protocol):
        data = b""

        def data_received(self, data: bytes) -> None:
            self.data += data

    reader, writer, far = await against_pipe()
    far.try_send(b"old|new")
    assert await reader.readuntil(b"|") == b"old|"
    transport: Any = writer.transport
    old = transport.get_protocol()
    upgraded = Upgraded()
    transport.set_protocol(upgraded)
    far.try_send(b" data")
    await settle()
    buffer: Any = reader
    assert bytes(buffer._buffer) + upgraded.data == b"new data"
    transport.set_protocol(old)
    far.try_send(b"back")
    await settle()
    assert await reader.read(100) == b"newback"
    await close(writer)


async def test_a_plain_stream_protocol_works_too() -> None:
    """create_connection() with asyncio's own classes: data is pushed, the reader pauses the transport."""
    loop = asyncio.get_running_loop()
    near, far = memory_pipe_pair(64)
    reader = asyncio.StreamReader(limit=10, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport = connect_pipe(near, protocol)
    await settle()
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    for _ in range(5):
        far.try_send(b"0123456789")
        await settle()
    assert not transport.is_reading()
    assert await reader.readexactly(50) == b"0123456789" * 5
    assert transport.is_reading()
    await close(writer)
