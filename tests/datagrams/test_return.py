"""Connections on TCP that return to RDMA although one end does not read, or as soon as it does."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio
import pytest

import aiordma
from aiordma.config import Config
from aiordma.errors import Code, NegotiationError
from aiordma.pipes._ring_records import RingDatagrams
from tests.health import nothing_left, until
from tests.links.failover.breaking import take_off
from tests.links.failover.test_slow_reader import AHEAD, be_patient, patience
from tests.processes import PATIENCE
from tests.world import DEVICE

from .pairs import Pair, negotiated_pair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiordma.datagrams.connection import DatagramConnection
    from aiordma.links.engine import Engine
    from aiordma.pipes._switchable import SwitchablePipe

pytestmark = pytest.mark.anyio

CONFIG = Config(device=DEVICE, ring_bytes=65536)
#: Together more than the ring and the kernels' buffers hold.
COUNT, BYTES = 800, 12_000


def ring_of(connection: DatagramConnection) -> SwitchablePipe:
    assert isinstance(connection._pipe, RingDatagrams)
    return connection._pipe.ring


def message(number: int) -> bytes:
    return number.to_bytes(4) * (BYTES // 4)


async def send_all(writer: DatagramConnection) -> None:
    for number in range(COUNT):
        await writer.send(message(number))


async def receive_all(reader: DatagramConnection) -> None:
    for number in range(COUNT):
        assert await reader.receive() == message(number)


@contextlib.asynccontextmanager
async def stalled(
    engine: Engine, reader: DatagramConnection, writer: DatagramConnection, when: str
) -> AsyncIterator[None]:
    """Both on TCP, and the writer waits for the reader, which does not read.

    :param when: the link is lost before anything is sent, or with a ring that is full.
    """
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            if when == "before":
                take_off(engine, "link")
                await until(lambda: reader.path == writer.path == "tcp")
            tasks.start_soon(send_all, writer)
            await until(lambda: ring_of(writer).counters[0] > (AHEAD if when == "before" else 0))
            await until(lambda: writer.writable < BYTES)
            if when == "full":
                take_off(engine, "link")
                await until(lambda: reader.path == writer.path == "tcp")
                await until(lambda: writer.writable < BYTES)
            yield


async def answers(reader: DatagramConnection, writer: DatagramConnection) -> None:
    """All of it on RDMA."""
    await until(lambda: reader.path == writer.path == "rdma")
    await reader.send(b"answer")
    assert await writer.receive() == b"answer"
    await writer.send(b"more")
    assert await reader.receive() == b"more"


def ends(pair: Pair, reader_is: int) -> Pair:
    return pair[reader_is], pair[1 - reader_is]


@pytest.mark.parametrize("when", ["before", "full"])
@pytest.mark.parametrize("reader_is", [0, 1])
async def test_a_reader_asks(when: str, reader_is: int) -> None:
    """The answer is behind what it has not read: it is found there, and no time limit passes."""
    async with nothing_left() as engine:
        reader, writer = pair = ends(await negotiated_pair(config=CONFIG, mode="rdma"), reader_is)
        async with stalled(engine, reader, writer, when):
            assert await aiordma.switch_path(reader, "rdma") == 1
            assert reader.path == "rdma"
            await receive_all(reader)
        await answers(reader, writer)
        for connection in pair:
            await connection.aclose()


@pytest.mark.parametrize("when", ["before", "full"])
@pytest.mark.parametrize("reader_is", [0, 1])
async def test_a_writer_asks(when: str, reader_is: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hears that its peer does not read, and returns when that has read."""
    async with nothing_left() as engine:
        reader, writer = pair = ends(await negotiated_pair(config=CONFIG, mode="rdma"), reader_is)
        async with stalled(engine, reader, writer, when):
            before = engine.config.negotiate_timeout_ms
            patience(monkeypatch, engine, 50)
            for _ in range(2):
                with pytest.raises(NegotiationError, match="bytes wait for") as refused:
                    await aiordma.switch_path(writer, "rdma")
                assert refused.value.code == Code.PEER_DOES_NOT_READ
            patience(monkeypatch, engine, before)
            be_patient(ring_of(writer))
            assert writer.path == reader.path == "tcp"
            await receive_all(reader)
        await answers(reader, writer)
        for connection in pair:
            await connection.aclose()
