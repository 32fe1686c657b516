"""A client that calls and does not read its answers: its server keeps a bounded number of bytes for it."""

from __future__ import annotations

import contextlib
from typing import Any

import anyio
import pytest

from aiordma import rpc
from aiordma.config import Config
from aiordma.rpc import server as servers
from tests.health import nothing_left, settle, until
from tests.processes import PATIENCE
from tests.world import DEVICE

pytestmark = pytest.mark.anyio

CONFIG = Config(device=DEVICE)
MIB = 1 << 20
CALLS = 100


@pytest.mark.parametrize("path", ["rdma", "tcp"])
async def test_replies_that_wait_are_bounded_in_bytes(path: Any) -> None:
    """Calls that are not looked at wait at the client. All are answered as soon as it reads."""
    service, begun = rpc.Service("s"), 0

    @service.method
    def large() -> bytes:
        nonlocal begun
        begun += 1
        return bytes(MIB)

    done: list[int] = []
    async with nothing_left(), rpc.serve(service, "127.0.0.1", config=CONFIG) as server:
        async with rpc.connect("127.0.0.1", server.port, config=CONFIG, mode=path) as client:
            assert client.path == path
            (connection,) = server._connections
            assert connection._most_queued_bytes == 256 * MIB
            connection._most_queued_bytes = 16 * MIB
            channel: Any = client.connection.channel
            reads, channel.on_message = channel.on_message, None

            async def call() -> None:
                done.append(len(await client.call("s.large")))

            async with anyio.create_task_group() as tasks:
                for _ in range(CALLS):
                    tasks.start_soon(call)
                await until(lambda: not connection._receives)
                await settle()
                assert connection._queued_bytes <= 16 * MIB + MIB + 1024
                assert begun < CALLS
                channel.on_message = reads
        assert done == [MIB] * CALLS


@pytest.mark.parametrize("end", ["close", "abort"])
@pytest.mark.parametrize("path", ["rdma", "tcp"])
async def test_its_end_is_seen(path: Any, end: str) -> None:
    """Also behind calls that the server does not look at."""
    service, ended = rpc.Service("s"), 0

    @service.method
    def large() -> bytes:
        return bytes(MIB)

    async def call(client: rpc.Client) -> None:
        nonlocal ended
        with pytest.raises(rpc.RpcError):
            await client.call("s.large")
        ended += 1

    async with nothing_left(), rpc.serve(service, "127.0.0.1", config=CONFIG) as server:
        async with rpc.connect("127.0.0.1", server.port, config=CONFIG, mode=path) as client:
            (connection,) = server._connections
            connection._most_queued_bytes = 16 * MIB
            client.connection.channel.on_message = None
            async with anyio.create_task_group() as tasks:
                for _ in range(CALLS):
                    tasks.start_soon(call, client)
                await until(lambda: not connection._receives)
                (client.abort if end == "abort" else client.connection.close)()
                await until(lambda: not server._connections)
        assert ended == CALLS


@pytest.mark.parametrize("path", ["rdma", "tcp"])
async def test_answers_that_wait_outlast_the_end_of_the_block(
    path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their handlers have returned: what was cancelled may clean up, and they may leave."""
    monkeypatch.setattr(servers, "CLEAN_UP_S", 0)
    monkeypatch.setattr(servers, "ANSWERS_S", PATIENCE)
    service, begun, done = rpc.Service("s"), 0, 0

    @service.method
    def large() -> bytes:
        nonlocal begun
        begun += 1
        return bytes(MIB)

    async def call(client: rpc.Client) -> None:
        nonlocal done
        assert len(await client.call("s.large")) == MIB
        done += 1

    async with nothing_left(), contextlib.AsyncExitStack() as stack:
        serving = rpc.serve(service, "127.0.0.1", config=CONFIG, drain_timeout=0)
        server = await serving.__aenter__()
        connecting = rpc.connect("127.0.0.1", server.port, config=CONFIG, mode=path)
        client = await stack.enter_async_context(connecting)
        (connection,) = server._connections
        channel: Any = client.connection.channel
        reads, channel.on_message = channel.on_message, None
        async with anyio.create_task_group() as tasks:
            for _ in range(30):
                tasks.start_soon(call, client)
            await until(lambda: begun == 30 and connection.unsent > 0 and not connection.machine.calls)
            tasks.start_soon(serving.__aexit__, None, None, None)
            await until(lambda: server._closed)
            await settle()
            channel.on_message = reads
    assert done == 30
