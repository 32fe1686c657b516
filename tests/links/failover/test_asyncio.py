"""asyncio's surface on streams that leave RDMA: readers, writers, transports and protocols go on."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import aiordma
from aiordma.errors import Code
from aiordma.links import engine as engines
from aiordma.links.failover.rejoin import Rejoin
from aiordma.proto.handshake import Timeouts
from tests.compat.recorder import Recorder
from tests.health import nothing_left, until
from tests.loops import LOOPS
from tests.processes import FULL_PATIENCE
from tests.roles import LOCAL, port_of

from .breaking import WAYS, take_off

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

ASYNCIO_LOOPS = [name for name in LOOPS if name != "trio"]


@pytest.fixture(params=ASYNCIO_LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return LOOPS[request.param]


pytestmark = pytest.mark.anyio

DATA = Random(3).randbytes(1_500_000)


class Waits(SimpleNamespace):
    """As :class:`Timeouts`, which cannot change once an attempt has begun."""

    last_step = Timeouts.last_step


LINES = [b"%d %s\n" % (number, b"x" * (number * 37 % 900)) for number in range(2_000)]


async def exchange(way: str, goal: int, work: Callable[..., Coroutine[Any, Any, None]]) -> None:
    """``work(reader, writer, gone)`` at both ends; the link goes away after so many bytes (``gone``)."""
    async with nothing_left() as engine:
        gone, begun = asyncio.Event(), asyncio.Event()
        served: asyncio.Queue[BaseException | None] = asyncio.Queue()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            begun.set()
            try:
                await work(reader, writer, gone)
            except BaseException as error:
                served.put_nowait(error)
                raise
            served.put_nowait(None)

        server = await aiordma.start_server(serve, LOCAL, 0, mode="rdma")
        port = port_of(server)
        reader, writer = await aiordma.open_connection(LOCAL, port, mode="rdma")
        assert writer.get_extra_info("aiordma.path") == "rdma"
        stream = writer.get_extra_info("aiordma.stream")

        async def harm() -> None:
            # A link that fails while the server's end still waits for it fails the connection.
            await begun.wait()
            await until(lambda: stream.statistics().bytes_received >= goal)
            take_off(engine, way)
            gone.set()

        async with asyncio.timeout(FULL_PATIENCE), asyncio.TaskGroup() as tasks:
            tasks.create_task(harm())
            tasks.create_task(work(reader, writer, gone))
            error = await served.get()
        assert error is None
        assert writer.get_extra_info("aiordma.path") == "tcp"
        reason = writer.get_extra_info("aiordma.fallback_reason")
        assert reason.code == (Code.SWITCHED if "switch" in way else Code.LINK_LOST)
        server.close()
        await server.wait_closed()


async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Event) -> None:
    """In the order in which nobody is cut off, and not before there is something to leave for."""
    await gone.wait()
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("goal", [0, 300_000])
async def test_bytes(way: str, goal: int) -> None:
    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Event) -> None:
        async def send() -> None:
            random = Random(1)
            at = 0
            while at < len(DATA):
                size = random.choice((1, 100, 5_000, 70_000))
                writer.write(DATA[at : at + size])
                at += size
                await writer.drain()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            random = Random(2)
            got = bytearray()
            while len(got) < len(DATA):
                size = min(random.choice((1, 77, 9_000, 200_000)), len(DATA) - len(got))
                got += await (reader.readexactly(size) if random.random() < 0.5 else reader.read(size))
            assert got == DATA
        await close(reader, writer, gone)

    await exchange(way, goal, work)


async def test_lines() -> None:
    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Event) -> None:
        async def send() -> None:
            for line in LINES:
                writer.write(line)
                await writer.drain()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            for line in LINES:
                assert await reader.readline() == line
        await close(reader, writer, gone)

    await exchange("link", 100_000, work)


async def test_more_is_queued_than_both_rings_hold() -> None:
    """Nobody drains: the transport's queue goes where the stream goes."""

    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Event) -> None:
        for at in range(0, len(DATA), 100_000):
            writer.write(DATA[at : at + 100_000])
        assert await reader.readexactly(len(DATA)) == DATA
        await close(reader, writer, gone)

    await exchange("link", 0, work)


@pytest.mark.parametrize("way", WAYS)
async def test_protocols(way: str) -> None:
    """connection_made(), data, eof_received() and connection_lost() in their order, once."""
    async with nothing_left() as engine:
        accepted: list[Recorder] = []

        def factory() -> Recorder:
            accepted.append(Recorder())
            return accepted[-1]

        server = await aiordma.create_server(factory, LOCAL, 0, mode="rdma")
        port = port_of(server)
        transport, mine = await aiordma.create_connection(Recorder, LOCAL, port, mode="rdma")
        assert isinstance(mine, Recorder)
        await until(lambda: bool(accepted and accepted[0].transport))
        theirs = accepted[0]
        other = theirs.transport
        other.pause_reading()
        transport.write(b"on RDMA, ")
        take_off(engine, way)
        transport.write(b"under way, ")
        await until(lambda: transport.get_extra_info("aiordma.path") == "tcp")
        await until(lambda: other.get_extra_info("aiordma.path") == "tcp")
        transport.write(b"on TCP")
        assert theirs.data == b""
        other.resume_reading()
        await until(lambda: theirs.data == b"on RDMA, under way, on TCP")
        other.write(b"answer")
        await until(lambda: mine.data == b"answer")
        transport.close()
        await until(lambda: mine.lost.done() and theirs.lost.done())
        assert mine.events == ["made", "data", "lost"]
        assert theirs.events == ["made", "data", "eof", "lost"]
        assert mine.lost.result() is theirs.lost.result() is None
        server.close()
        await server.wait_closed()


async def test_pipes_know_no_transport_after_the_end() -> None:
    """A transport aborted on the way, with nothing queued, ends the stream, wherever that goes on."""
    async with nothing_left() as engine:
        ended: list[bytes] = []
        begun = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            begun.set()
            ended.append(await reader.read())
            writer.close()

        server = await aiordma.start_server(serve, LOCAL, 0, mode="rdma")
        _, writer = await aiordma.open_connection(LOCAL, port_of(server), mode="rdma")
        await begun.wait()
        take_off(engine, "link")
        writer.transport.abort()
        await until(lambda: ended == [b""])
        assert (await engines.current()) is engine
        server.close()
        await server.wait_closed()


async def test_a_stream_that_is_not_read_returns() -> None:
    """Its reader holds two of its limits and has paused; it asks, and is back before it reads on."""
    many = DATA * 16
    async with nothing_left() as engine:
        accepted: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        server = await aiordma.start_server(lambda r, w: accepted.append((r, w)), LOCAL, 0, mode="rdma")
        reader, mine = await aiordma.open_connection(LOCAL, port_of(server), mode="rdma")
        await until(lambda: bool(accepted))
        theirs, writer = accepted[0]
        take_off(engine, "link")
        for each in (mine, writer):
            await until(lambda each=each: each.get_extra_info("aiordma.path") == "tcp")  # type: ignore[misc]
        writer.write(many)
        assert writer.transport.get_write_buffer_size()
        await aiordma.switch_path(mine, "rdma")
        assert mine.get_extra_info("aiordma.path") == "rdma"
        assert await reader.readexactly(len(many)) == many
        await until(lambda: writer.get_extra_info("aiordma.path") == "rdma")
        mine.write(b"answer")
        assert await theirs.readexactly(6) == b"answer"
        for each in (mine, writer):
            each.close()
            await each.wait_closed()
        server.close()


@pytest.mark.parametrize("asks", ["reader", "writer"])
async def test_a_paused_transport_returns(asks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end that does not read asks, and is back at once; or the other, and is back when that has read."""
    many = DATA * 16
    async with nothing_left() as engine:
        accepted: list[Recorder] = []

        def factory() -> Recorder:
            accepted.append(Recorder())
            return accepted[-1]

        server = await aiordma.create_server(factory, LOCAL, 0, mode="rdma")
        writer, mine = await aiordma.create_connection(Recorder, LOCAL, port_of(server), mode="rdma")
        assert isinstance(mine, Recorder)
        await until(lambda: bool(accepted and accepted[0].transport))
        theirs = accepted[0]
        reader = theirs.transport
        reader.pause_reading()
        take_off(engine, "link")
        await until(lambda: writer.get_extra_info("aiordma.path") == "tcp")
        await until(lambda: reader.get_extra_info("aiordma.path") == "tcp")
        writer.write(many)
        assert writer.get_write_buffer_size()
        if asks == "reader":
            await aiordma.switch_path(reader, "rdma")
        else:
            # Only the wait for the end that does not read is short, not those for the answers that follow.
            patient = engine.config.negotiate_timeout_ms / 1000
            usual = Timeouts(negotiate=0.05, link=engine.config.link_timeout_ms / 1000)
            waits = Waits(**usual._asdict())
            monkeypatch.setattr(Rejoin, "_timeouts", waits)
            with pytest.raises(aiordma.NegotiationError) as caught:
                await aiordma.switch_path(writer, "rdma")
            waits.negotiate = patient
            assert caught.value.code == Code.PEER_DOES_NOT_READ
        assert theirs.data == b""
        reader.resume_reading()
        await until(lambda: len(theirs.data) == len(many))
        assert theirs.data == many
        await until(lambda: reader.get_extra_info("aiordma.path") == "rdma")
        await until(lambda: writer.get_extra_info("aiordma.path") == "rdma")
        reader.write(b"answer")
        await until(lambda: mine.data == b"answer")
        writer.close()
        await until(lambda: mine.lost.done() and theirs.lost.done())
        assert mine.lost.result() is theirs.lost.result() is None
        server.close()
        await server.wait_closed()
