"""Registered memory that is used up: calls go on, and what can never be sent is an error at once."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import pytest

import aiordma
from aiordma import rpc
from aiordma.config import Config
from aiordma.errors import Code
from aiordma.links import engine as engines
from aiordma.verbs.memory.budget import MemoryLimitError
from aiordma.verbs.registrar import DeviceRegistrar
from tests.health import until
from tests.world import DEVICE

pytestmark = pytest.mark.anyio

LIMIT = 32 << 20
CONFIG = Config(device=DEVICE, memory_limit_bytes=LIMIT)
#: Far more than a call takes, and less than a test may.
PATIENCE = 20.0


def service() -> rpc.Service:
    made = rpc.Service("m")

    @made.method
    async def size(data: bytes) -> int:
        return len(data)

    @made.method
    async def blob(length: int) -> bytes:
        return bytes(length)

    @made.method
    async def one_of(items: AsyncIterator[bytes], wait: float) -> int:
        async for item in items:
            size = len(item)
            del item
            await anyio.sleep(wait)
            return size
        return 0

    @made.method
    async def blobs(length: int) -> AsyncIterator[bytes]:
        yield b"first"
        yield bytes(length)

    return made


@contextmanager
def filled() -> Iterator[None]:
    """Connections of this loop hold all the memory that they may have, as with thousands of open streams."""
    engine = engines.running()
    assert engine is not None
    pd = engine.backend.alloc_pd()
    arena = engine.pool.arena(DeviceRegistrar(engine.backend, pd, remote=True))
    rings = []
    with contextlib.suppress(MemoryLimitError):
        while True:
            rings.append(arena.allocate(512 << 10, minimum=4096))
    try:
        yield
    finally:
        for ring in rings:
            ring.free(0)
        arena.close()
        pd.close()


@asynccontextmanager
async def called() -> AsyncIterator[rpc.Client]:
    async with (
        rpc.serve(service(), "127.0.0.1", config=CONFIG) as server,
        rpc.connect("127.0.0.1", server.port, config=CONFIG) as client,
    ):
        yield client


async def refused(call: Any) -> str:
    """The text of the error by which it fails at once."""
    with anyio.fail_after(PATIENCE), pytest.raises(rpc.RpcError) as caught:
        await call
    assert caught.value.code is rpc.Code.RESOURCE_EXHAUSTED
    return str(caught.value)


async def test_calls_go_on_when_rings_have_used_the_memory_up() -> None:
    async with called() as client:
        with filled(), anyio.fail_after(PATIENCE):
            assert client.path == "rdma"
            for size in (100, 5000, 100_000, 1 << 20) * 5:
                assert await client.call("m.size", bytes(size), returns=int) == size
                assert len(await client.call("m.blob", size, returns=bytes)) == size


async def test_the_reason_names_the_limit_and_the_remedy() -> None:
    async with called(), await aiordma.listen("127.0.0.1", config=CONFIG) as listener:
        with filled():
            async with await aiordma.connect("127.0.0.1", listener.port, config=CONFIG) as stream:
                reason = stream.fallback_reason
                assert reason is not None
                assert reason.code == Code.OUT_OF_MEMORY
                assert "AIORDMA_MEMORY_LIMIT_BYTES" in reason.text
            await anyio.aclose_forcefully(await listener.accept())


async def test_what_rings_leave_no_room_for_is_refused_at_once() -> None:
    """Arguments, results and items; the connection goes on."""
    async with called() as client:
        with filled():
            assert "AIORDMA_MEMORY_LIMIT_BYTES" in await refused(client.call("m.size", bytes(7 << 20)))
            assert "the result cannot be sent" in await refused(client.call("m.blob", 7 << 20))
            async with client.stream("m.blobs", 7 << 20, returns=bytes) as stream:
                assert await stream.receive() == b"first"
                assert "AIORDMA_MEMORY_LIMIT_BYTES" in await refused(stream.receive())
            assert await client.call("m.size", b"four", returns=int) == 4
            assert client.path == "rdma"


async def test_a_client_that_comes_later_is_served_over_tcp() -> None:
    async with rpc.serve(service(), "127.0.0.1", config=CONFIG) as server:
        with filled():
            async with rpc.connect("127.0.0.1", server.port, config=CONFIG) as client:
                assert client.path == "tcp"
                assert client.fallback_reason is not None
                assert client.fallback_reason.code == Code.OUT_OF_MEMORY
                with anyio.fail_after(PATIENCE):
                    assert await client.call("m.size", bytes(5 << 20), returns=int) == 5 << 20


@contextmanager
def no_collection() -> Iterator[None]:
    """Cycles stay: an event loop that allocates little collects them minutes later."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def kept() -> int:
    """Received messages that hold registered memory."""
    engine = engines.running()
    assert engine is not None
    return len(engine.pool.kept)


@pytest.mark.parametrize("end", ["handler returns", "cancelled", "connection closed"])
async def test_items_that_were_not_taken_give_their_memory_back(end: str) -> None:
    with no_collection():
        async with called() as client:
            wait = 0 if end == "handler returns" else 1000
            stream = client.stream("m.one_of", wait, returns=int)
            await stream.start()
            for _ in range(3):
                await stream.send(bytes(20_000))
            if end == "handler returns":
                assert await stream.result() == 20_000
            else:
                await until(lambda: kept() >= 2)
            if end == "cancelled":
                stream.close()
                await until(lambda: kept() == 0)
        await until(lambda: kept() == 0)


async def test_a_result_that_arrives_after_its_call_was_cancelled_gives_its_memory_back() -> None:
    with no_collection():
        async with called() as client:
            for _ in range(50):
                with anyio.move_on_after(0.0005):
                    await client.call("m.blob", 20_000, returns=memoryview)
                # Each time: a result that came in the moment of the cancellation was held until the next.
                await until(lambda: kept() == 0)
