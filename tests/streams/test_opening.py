"""`connect()`, `listen()` and their like: with `await`, with `async with`, where one wants a coroutine."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from typing import Any

import anyio
import pytest

import aiordma
from tests.processes import FULL_PATIENCE

LOCAL = "127.0.0.1"
WAYS: dict[str, tuple[Any, Any]] = {
    "streams": (aiordma.listen, aiordma.connect),
    "datagrams": (aiordma.listen_datagram, aiordma.connect_datagram),
}
BOTH = pytest.mark.parametrize("kind", WAYS)


@pytest.mark.anyio
@BOTH
async def test_without_await(kind: str) -> None:
    listen, connect = WAYS[kind]
    async with listen(LOCAL, mode="tcp") as listener:
        async with connect(LOCAL, listener.port, mode="tcp") as client:
            await client.send(b"x")
            server = await listener.accept()
            assert await server.receive() == b"x"
        with pytest.raises(anyio.ClosedResourceError):
            await client.send(b"x")
        await server.aclose()
    with pytest.raises(anyio.ClosedResourceError):
        await listener.accept()


@pytest.mark.anyio
@BOTH
async def test_with_await(kind: str) -> None:
    listen, connect = WAYS[kind]
    async with await listen(LOCAL, mode="tcp") as listener:
        async with await connect(LOCAL, listener.port, mode="tcp") as client:
            await client.send(b"x")


@pytest.mark.anyio
async def test_an_endpoint_without_await() -> None:
    async with aiordma.open_datagram_endpoint((LOCAL, 0), mode="tcp") as endpoint:
        assert endpoint.fallback_reason is not None
    with pytest.raises(anyio.ClosedResourceError):
        await endpoint.receive()


@pytest.mark.anyio
@BOTH
async def test_errors_come_out_of_the_block(kind: str) -> None:
    _, connect = WAYS[kind]
    with pytest.raises(ValueError, match="mode='ib': must be one of 'auto', 'rdma', 'tcp'"):
        async with connect(LOCAL, 1, mode="ib"):
            pytest.fail("opened")
    with pytest.raises(ConnectionRefusedError):
        await connect(LOCAL, 1)


@BOTH
def test_where_asyncio_wants_a_coroutine(kind: str) -> None:
    listen, connect = WAYS[kind]

    async def main() -> None:
        async with listen(LOCAL, mode="tcp") as listener:
            task = asyncio.create_task(connect(LOCAL, listener.port, mode="tcp"))
            assert "connect" in repr(task)
            both = await asyncio.gather(task, connect(LOCAL, listener.port, mode="tcp"))
            for client in (
                *both,
                await asyncio.wait_for(connect(LOCAL, listener.port, mode="tcp"), FULL_PATIENCE),
            ):
                await client.aclose()

    asyncio.run(main())


@pytest.mark.anyio
@BOTH
async def test_where_task_groups_want_a_coroutine(kind: str) -> None:
    _, connect = WAYS[kind]
    with pytest.raises(BaseExceptionGroup) as caught:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connect, LOCAL, 1)
    assert caught.group_contains(ConnectionRefusedError)


def test_one_that_is_never_used_is_reported() -> None:
    code = "import aiordma; aiordma.connect('127.0.0.1', 1)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "coroutine 'connect' was never awaited" in done.stderr


def test_a_reader_sees_the_function() -> None:
    assert list(inspect.signature(aiordma.connect).parameters)[:2] == ["host", "port"]
    assert "local_host" in inspect.signature(aiordma.connect).parameters
    unused = aiordma.connect(LOCAL, 1)
    assert repr(unused) == "<connect(): await it, or open it with `async with`>"
    unused.close()
