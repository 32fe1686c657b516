"""The same operations on our reader over a ring and on asyncio's over a socket give the same results."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from aiordma.compat.streams import ring_streams
from aiordma.testing.memory import memory_pipe_pair
from tests.health import settle

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = 64

# Short alphabets make separators, and separators split over two arrivals, likely.
chunks = st.text("ab;\n", min_size=1, max_size=2 * LIMIT).map(str.encode)
steps = st.one_of(
    st.tuples(st.just("feed"), chunks),
    st.tuples(st.just("read"), st.integers(-1, 2 * LIMIT)),
    st.tuples(st.just("readexactly"), st.integers(-1, 3 * LIMIT)),
    st.tuples(st.just("readuntil"), st.sampled_from([b"\n", b";", b"ab", b"a;b", b"\n\n", b""])),
    st.tuples(st.just("readline"), st.none()),
    st.tuples(st.just("cancel"), st.none()),
    st.tuples(st.just("eof"), st.none()),
    st.tuples(st.just("look"), st.none()),
    st.tuples(st.just("pause"), st.booleans()),
)
programs = st.lists(steps, max_size=30)


async def perform(reader: asyncio.StreamReader, name: str, argument: Any) -> Any:
    try:
        return await (reader.readline() if argument is None else getattr(reader, name)(argument))
    except asyncio.CancelledError:
        return "cancelled"
    except asyncio.IncompleteReadError as exc:
        return "incomplete", exc.partial, exc.expected
    except asyncio.LimitOverrunError as exc:
        return "overrun", exc.consumed, exc.args[0]
    except (ValueError, RuntimeError) as exc:
        return type(exc), exc.args


async def execute(
    reader: asyncio.StreamReader,
    transport: Any,
    feed: Callable[[bytes], object],
    feed_eof: Callable[[], object],
    program: list[tuple[str, Any]],
) -> list[Any]:
    """Run the program; every step sees all data fed before it."""
    results: list[Any] = []
    waiting: list[asyncio.Task[Any]] = []
    unread = 0
    eof = paused = False
    for name, argument in program:
        if name == "feed":
            # asyncio stops reading above twice its limit: keep below, where no timing can show.
            if not eof and unread + len(argument) <= 2 * LIMIT:
                feed(argument)
                unread += len(argument)
        elif name == "eof":
            if not eof:
                eof = True
                feed_eof()
        elif name == "pause":
            paused = argument
            if paused:
                transport.pause_reading()
            else:
                transport.resume_reading()
        elif name == "look":
            if waiting:
                continue  # the bytes of a running large read are in neither place
            results.append((bytes(reader._buffer), reader.at_eof()))  # type: ignore[attr-defined]
        elif name == "cancel":
            for task in waiting:
                task.cancel()
        elif not waiting:
            waiting.append(asyncio.ensure_future(perform(reader, name, argument)))
        await settle(6)
        for task in list(waiting):
            if task.done():
                waiting.remove(task)
                result = task.result()
                results.append(result)
                if isinstance(result, bytes):
                    unread -= len(result)
                elif result[0] == "incomplete" or result[0] is ValueError:
                    unread = len(reader._buffer)  # type: ignore[attr-defined]
    for task in waiting:
        task.cancel()
        results.append(await task)
    if paused:
        transport.resume_reading()
        await settle(6)
    results.append((bytes(reader._buffer), reader.at_eof()))  # type: ignore[attr-defined]
    return results


async def on_asyncio(program: list[tuple[str, Any]]) -> list[Any]:
    near, far = socket.socketpair()
    with far:
        near.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=near, limit=LIMIT)
        results = await execute(
            reader, writer.transport, far.sendall, lambda: far.shutdown(socket.SHUT_WR), program
        )
        writer.close()
        await writer.wait_closed()
    return results


async def on_ring(program: list[tuple[str, Any]], ring_bytes: int, spin: bool) -> list[Any]:
    near, far = memory_pipe_pair(ring_bytes, spin=spin)
    queue = bytearray()

    def flush() -> None:
        while queue and (n := far.try_send(bytes(queue))):
            del queue[:n]
        if eof and not queue:
            far.send_eof()

    eof = False

    def feed(data: bytes) -> None:
        queue.extend(data)
        flush()

    def feed_eof() -> None:
        nonlocal eof
        eof = True
        flush()

    far.on_writable = flush
    reader, writer = ring_streams(near, LIMIT)
    results = await execute(reader, writer.transport, feed, feed_eof, program)
    writer.close()
    await writer.wait_closed()
    return results


@pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
@given(program=programs, spin=st.booleans())
@settings(max_examples=150, deadline=None)
def test_same_results(new_loop: Callable[[], Any], program: list[tuple[str, Any]], spin: bool) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        expected = runner.run(on_asyncio(program))
        assert runner.run(on_ring(program, 1024, spin)) == expected


@given(
    data=st.binary(max_size=3000),
    reads=st.lists(st.tuples(st.sampled_from(["read", "readexactly", "look"]), st.integers(1, 400))),
    ring_bytes=st.integers(1, 200),
    spin=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_no_byte_is_lost_in_a_small_ring(
    data: bytes, reads: list[tuple[str, int]], ring_bytes: int, spin: bool
) -> None:
    async def main() -> None:
        near, far = memory_pipe_pair(ring_bytes, spin=spin)
        (reader, writer), (_, peer) = ring_streams(near, 50), ring_streams(far, 50)
        peer.write(data)
        peer.write_eof()
        got = bytearray()
        turn = 0
        while not reader.at_eof():
            name, n = (*reads, ("read", 7))[turn % (len(reads) + 1)]
            turn += 1
            if name == "look":
                assert data[len(got) :].startswith(bytes(reader._buffer))  # type: ignore[attr-defined]
                continue
            try:
                got += await getattr(reader, name)(n)
            except asyncio.IncompleteReadError as exc:
                got += exc.partial
        assert got == data
        for w in (writer, peer):
            w.close()
            await w.wait_closed()

    asyncio.run(main())
