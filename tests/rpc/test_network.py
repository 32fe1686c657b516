"""The same calls between two ends that know each other by an address only: over RDMA and over TCP."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiordma import rpc
from aiordma.config import Config
from tests.health import until
from tests.world import DEVICE

from .services import Seen, service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiordma.config import Mode

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("path", ["rdma", "tcp"])]

CONFIG = Config(device=DEVICE)


@asynccontextmanager
async def served(path: Mode, **server: Any) -> AsyncIterator[tuple[rpc.Client, rpc.Server, Seen]]:
    made, seen = service()
    async with (
        rpc.serve(made, "127.0.0.1", config=CONFIG, **server) as answering,
        rpc.connect("127.0.0.1", answering.port, config=CONFIG, mode=path) as client,
    ):
        assert client.path == path
        assert (client.fallback_reason is None) == (path == "rdma")
        yield client, answering, seen


@pytest.mark.parametrize("method", ["echo", "echo_async", "echo_late", "view"])
async def test_sizes(path: Mode, method: str) -> None:
    async with served(path) as (client, _, _):
        for size in (0, 1, 64, 4096, 5000, 300_000, 1 << 20):
            data = bytes(range(256)) * (size // 256) + bytes(size % 256)
            assert await client.call(f"t.{method}", data) == data


async def test_every_kind_at_once(path: Mode) -> None:
    async with served(path) as (client, server, _):

        async def items() -> None:
            async with client.stream("t.count_async", 500, returns=int) as stream:
                assert [item async for item in stream] == list(range(500))

        async def total() -> None:
            async with client.stream("t.total", 0, returns=int) as stream:
                for i in range(500):
                    await stream.send(i)
                assert await stream.result() == 124750

        async def both() -> None:
            async with client.stream("t.double", returns=int) as stream:
                for i in range(200):
                    await stream.send(i)
                    assert await stream.receive() == 2 * i

        async def blobs() -> None:
            async with client.stream("t.blobs", 30, 100_000, returns=bytes) as stream:
                assert [item[0] async for item in stream] == list(range(30))

        async def unary() -> None:
            for i in range(300):
                assert await client.call("t.add", i, 1, returns=int) == i + 1

        async with anyio.create_task_group() as tasks:
            for work in (items, total, both, blobs, unary, unary):
                tasks.start_soon(work)
        while client.connection.calls:  # that of both() was cancelled
            await checkpoint()
        assert server.statistics().in_flight == 0


async def test_many_in_flight(path: Mode) -> None:
    async with served(path, calls=2000) as (client, _, seen):
        async with anyio.create_task_group() as tasks:
            for _ in range(2000):
                tasks.start_soon(client.call, "t.wait")
            while seen.running < 2000:
                await checkpoint()
            assert await is_refused(client)
            seen.go.set()
        assert seen.finished == 2000
        assert await client.call("t.echo", b"x") == b"x"


async def is_refused(client: rpc.Client) -> bool:
    with pytest.raises(rpc.RpcTimeout):
        await client.call("t.echo", b"", timeout=0.01)
    return True


async def test_deadline_and_cancellation(path: Mode) -> None:
    async with served(path) as (client, _, seen):
        with pytest.raises(TimeoutError):
            await client.call("t.wait", timeout=0.02)
        with anyio.move_on_after(0.02):
            await client.call("t.wait")
        while client.connection.calls:
            await checkpoint()
        assert seen.cancelled == seen.started <= 2  # (not begun: the deadline was faster)
        assert seen.running == 0


async def test_errors(path: Mode) -> None:
    async with served(path) as (client, _, _):
        with pytest.raises(rpc.RpcError) as caught:
            await client.call("t.fail", "rpc")
        assert (caught.value.code, caught.value.details) == (rpc.Code.NOT_FOUND, b"details")
        with pytest.raises(rpc.RpcError) as caught:
            await client.call("t.big", 100 << 20)
        assert caught.value.code is rpc.Code.RESOURCE_EXHAUSTED


async def test_slow_receiver_of_large_items(path: Mode) -> None:
    async with served(path) as (client, _, seen):
        async with client.stream("t.blobs", 200, 200_000, returns=bytes) as stream:
            await stream.receive()
            for _ in range(100):
                assert await client.call("t.echo", b"not held up") == b"not held up"
            assert seen.taken < 20
            sizes = [len(item) async for item in stream]
            assert sizes == [200_000] * 199


async def test_the_server_shuts_down(path: Mode) -> None:
    made, seen = service()
    results: list[Any] = []
    async with anyio.create_task_group() as tasks:
        serving = rpc.serve(made, "127.0.0.1", config=CONFIG)
        server = await serving.__aenter__()
        async with rpc.connect("127.0.0.1", server.port, config=CONFIG, mode=path) as client:

            async def call() -> None:
                results.append(await client.call("t.wait"))

            tasks.start_soon(call)
            while not seen.running:
                await checkpoint()

            async def go() -> None:
                assert await client.wait_closed() is None
                with pytest.raises(rpc.RpcError) as caught:
                    await client.call("t.echo", b"")
                assert caught.value.not_started
                seen.go.set()

            tasks.start_soon(go)
            await serving.__aexit__(None, None, None)
            while not results:
                await checkpoint()
        assert results == ["gone"]
        with pytest.raises(
            rpc.RpcError, match=r"UNAVAILABLE: cannot connect to .*: Connection refused"
        ) as no:
            async with rpc.connect("127.0.0.1", server.port, config=CONFIG, mode=path):
                pass
        assert isinstance(no.value, ConnectionError)
        assert isinstance(no.value.__cause__, ConnectionRefusedError)
        assert (no.value.code, no.value.not_started) == (rpc.Code.UNAVAILABLE, True)


async def test_a_client_that_leaves_cancels_its_handlers(path: Mode) -> None:
    made, seen = service()
    async with rpc.serve(made, "127.0.0.1", config=CONFIG) as server:
        async with anyio.create_task_group() as tasks:
            async with rpc.connect("127.0.0.1", server.port, config=CONFIG, mode=path) as client:

                async def call() -> None:
                    with pytest.raises(rpc.RpcError) as caught:
                        await client.call("t.wait")
                    assert caught.value.code is rpc.Code.UNAVAILABLE

                tasks.start_soon(call)
                while not seen.running:
                    await checkpoint()
        while server.statistics().connections:
            await checkpoint()
        while seen.running:
            await checkpoint()
        assert seen.cancelled == 1


async def test_two_clients_of_one_server(path: Mode) -> None:
    async with served(path) as (client, server, seen):
        async with rpc.connect("127.0.0.1", server.port, config=CONFIG, mode="tcp") as other:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call, "t.wait")
                tasks.start_soon(other.call, "t.wait")
                while seen.running < 2:
                    await checkpoint()
                assert server.statistics() == (2, 2, 2)
                seen.go.set()
            assert await other.call("t.echo", b"x") == b"x"


async def test_a_block_that_fails_does_not_wait(path: Mode) -> None:
    made, seen = service()

    async def call(client: rpc.Client) -> None:
        with pytest.raises(rpc.RpcError):
            await client.call("t.wait")

    async def serve_and_fail() -> None:
        async with rpc.serve(made, "127.0.0.1", config=CONFIG) as server:
            client = await tasks.start(hold, server.port, path)
            tasks.start_soon(call, client)
            while not seen.running:
                await checkpoint()
            raise ZeroDivisionError

    async with anyio.create_task_group() as tasks:
        with pytest.raises(ZeroDivisionError):
            await serve_and_fail()
    await until(lambda: seen.cancelled == 1)


async def hold(port: int, path: Mode, *, task_status: anyio.abc.TaskStatus[rpc.Client]) -> None:
    async with rpc.connect("127.0.0.1", port, config=CONFIG, mode=path) as client:
        task_status.started(client)
        await client.wait_closed()
