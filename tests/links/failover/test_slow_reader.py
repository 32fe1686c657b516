"""Streams on TCP that return to RDMA although one end does not read, or as soon as it does."""

from __future__ import annotations

import contextlib
import dataclasses
from random import Random
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

import aiordma
from aiordma.config import Config
from aiordma.errors import Code, NegotiationError
from aiordma.links.failover.leave import switch_back
from aiordma.pipes._switchable import SwitchablePipe
from tests.health import nothing_left, until
from tests.loops import LOOPS
from tests.processes import PATIENCE
from tests.roles import LOCAL
from tests.streams.pairs import negotiated_pair, rdma_pair, tls_contexts

from .breaking import take_off

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiordma.links.engine import Engine

pytestmark = pytest.mark.anyio

#: More than the ring and the kernels' buffers hold.
DATA = Random(1).randbytes(24_000_000)
#: More than a reader's end takes from TCP while nobody reads: 256 KiB, and a turn's share.
AHEAD = 330_000
SURFACES = ("native", "tls")
#: The stream leaves RDMA before it is written to, or with a ring that is full.
WHEN = ("before", "full")


async def new_pair(surface: str) -> tuple[aiordma.RdmaStream, aiordma.RdmaStream]:
    if surface == "native":
        return await rdma_pair()
    client, server = tls_contexts()
    config = Config(server_first_wait_ms=0)
    return await negotiated_pair(ssl=client, server_ssl=server, rdma_outside_tls=True, config=config)


def pipe_of(stream: aiordma.RdmaStream) -> SwitchablePipe:
    assert isinstance(stream._pipe, SwitchablePipe)
    return stream._pipe


def be_patient(pipe: SwitchablePipe) -> None:
    """The attempt that is under way waits for a busy loop, too."""
    attempt: Any = pipe.rejoin()
    machine = attempt._attempt.handshake._machine
    machine._timeouts = machine._timeouts._replace(negotiate=PATIENCE)


async def receive_all(stream: aiordma.RdmaStream, expected: bytes) -> None:
    got = bytearray()
    while len(got) < len(expected):
        got += await stream.receive()
    assert got == expected


def patience(monkeypatch: pytest.MonkeyPatch, engine: Engine, ms: int) -> None:
    """How long an answer is waited for; what has begun keeps its time."""
    monkeypatch.setattr(engine, "config", dataclasses.replace(engine.config, negotiate_timeout_ms=ms))


@contextlib.asynccontextmanager
async def stalled(
    engine: Engine, reader: aiordma.RdmaStream, writer: aiordma.RdmaStream, when: str
) -> AsyncIterator[None]:
    """Both on TCP, and the writer waits for the reader, which does not read."""
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            if when == "before":
                take_off(engine, "link")
                await until(lambda: reader.path == writer.path == "tcp")
            tasks.start_soon(writer.send, DATA)
            await until(lambda: pipe_of(writer).counters[0] > (AHEAD if when == "before" else 0))
            await until(lambda: writer.credit.available == 0)
            if when == "full":
                take_off(engine, "link")
                await until(lambda: reader.path == writer.path == "tcp")
                await until(lambda: writer.credit.available == 0)
            yield


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("reader_is", [0, 1])
async def test_a_reader_asks(surface: str, when: str, reader_is: int) -> None:
    """The answer is behind what it has not read: it is found there, and no time limit passes."""
    async with nothing_left() as engine:
        pair = await new_pair(surface)
        reader, writer = pair[reader_is], pair[1 - reader_is]
        async with stalled(engine, reader, writer, when):
            await switch_back(pipe_of(reader))
            assert reader.path == "rdma"
            await receive_all(reader, DATA)
        await until(lambda: writer.path == "rdma")
        await reader.send(b"answer")
        assert await writer.receive() == b"answer"
        for stream in pair:
            await stream.aclose()


@pytest.mark.parametrize("asks", ["reader", "writer"])
@pytest.mark.parametrize("reader_is", [0, 1])
async def test_an_end_of_trio_asks(
    reader_is: int, asks: str, anyio_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same of sockets of trio's, under `aiordma.install()`, and as below of one that writes."""
    if anyio_backend != LOOPS["trio"]:
        pytest.skip("trio's surface")
    import trio

    aiordma.install(remember=False)
    try:
        async with nothing_left() as engine:
            (listener,) = await trio.open_tcp_listeners(0, host=LOCAL)
            ends: list[Any] = [None, None]

            async def connect() -> None:
                ends[0] = await trio.open_tcp_stream(LOCAL, listener.socket.getsockname()[1])

            async with listener, anyio.create_task_group() as tasks:
                tasks.start_soon(connect)
                ends[1] = await listener.accept()
            reader, writer = (end.socket.stream for end in (ends[reader_is], ends[1 - reader_is]))
            async with stalled(engine, reader, writer, "before"):
                if asks == "reader":
                    await switch_back(pipe_of(reader))
                    assert reader.path == "rdma"
                else:
                    before = engine.config.negotiate_timeout_ms
                    patience(monkeypatch, engine, 50)
                    assert (await refused(writer)).code == Code.PEER_DOES_NOT_READ
                    patience(monkeypatch, engine, before)
                    be_patient(pipe_of(writer))
                    assert writer.path == reader.path == "tcp"
                got = bytearray()
                while len(got) < len(DATA):
                    got += await ends[reader_is].receive_some()
                assert got == DATA
            await until(lambda: reader.path == writer.path == "rdma")
            await ends[reader_is].send_all(b"answer")
            assert await ends[1 - reader_is].receive_some() == b"answer"
            for end in ends:
                await end.aclose()
    finally:
        aiordma.uninstall()


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("reader_is", [0, 1])
async def test_a_writer_asks(
    surface: str, when: str, reader_is: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hears that its peer does not read, and returns when that has read. Others do not wait for it."""
    async with nothing_left() as engine:
        pair = await new_pair(surface)
        reader, writer = pair[reader_is], pair[1 - reader_is]
        async with stalled(engine, reader, writer, when):
            before = engine.config.negotiate_timeout_ms
            patience(monkeypatch, engine, 50)
            errors = [await refused(writer), await refused(writer)]
            patience(monkeypatch, engine, before)
            for error in errors:
                assert error.code == Code.PEER_DOES_NOT_READ
                assert "bytes wait for" in str(error)
            assert writer.path == reader.path == "tcp"
            others = await rdma_pair()
            await others[0].send(b"others")
            assert await others[1].receive() == b"others"
            await receive_all(reader, DATA)
        await until(lambda: reader.path == writer.path == "rdma")
        await writer.send(b"more")
        assert await reader.receive() == b"more"
        for stream in (*pair, *others):
            await stream.aclose()


async def refused(stream: aiordma.RdmaStream) -> NegotiationError:
    with pytest.raises(NegotiationError) as caught:
        await switch_back(pipe_of(stream))
    return caught.value


def fill(stream: aiordma.RdmaStream) -> int:
    """As much of the data as goes without waiting."""
    sent = 0
    while more := stream._pipe.try_send(DATA, sent):
        sent += more
    return sent


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("what", ["aclose", "send_eof"])
async def test_a_writer_that_waits_to_return_ends(
    surface: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has sent still arrives, however late that is read, and its end."""
    async with nothing_left() as engine:
        reader, writer = await new_pair(surface)
        with anyio.fail_after(PATIENCE):
            take_off(engine, "link")
            await until(lambda: reader.path == writer.path == "tcp")
            sent = fill(writer)
            before = engine.config.negotiate_timeout_ms
            patience(monkeypatch, engine, 50)
            await refused(writer)
            patience(monkeypatch, engine, before)
            await getattr(writer, what)()
            got = bytearray()
            with contextlib.suppress(anyio.EndOfStream):
                while True:
                    got += await reader.receive()
            assert got == DATA[:sent]
        for stream in (reader, writer):
            await stream.aclose()


async def test_several_wait_for_one_attempt() -> None:
    """A program and a tool may ask for the same stream."""
    async with nothing_left() as engine:
        reader, writer = await new_pair("native")
        take_off(engine, "link")
        await until(lambda: reader.path == writer.path == "tcp")
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(switch_back, pipe_of(reader))
        assert reader.path == "rdma"
        for stream in (reader, writer):
            await stream.aclose()
