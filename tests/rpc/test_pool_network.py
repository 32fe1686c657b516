"""Pools over real connections: servers that drain, come back, break; retries in between."""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Self

import anyio
import pytest

from aiordma import rpc
from tests.health import until

pytestmark = pytest.mark.anyio

QUICK = rpc.Backoff(first_s=0.005, most_s=0.02)


@pytest.fixture(params=["rdma", "tcp"])
def mode(request: pytest.FixtureRequest) -> Any:
    return request.param


class World:
    """Servers that say their names."""

    def __init__(self, mode: Any) -> None:
        self.mode = mode
        self._stack = AsyncExitStack()
        self._running: dict[str, AsyncExitStack] = {}
        self.servers: dict[str, rpc.Server] = {}
        self.ports: dict[str, int] = {}
        self.health: dict[str, rpc.Health] = {}
        self.begun: dict[str, int] = {}
        self.release = anyio.Event()

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.release.set()
        for running in self._running.values():
            await running.aclose()
        await self._stack.aclose()

    async def start(self, name: str, **options: Any) -> None:
        service = rpc.Service("t")

        @service.method(idempotent=True)
        def who() -> str:
            return name

        @service.method
        async def hold() -> str:
            await self.release.wait()
            return name

        @service.method
        async def count(n: int) -> AsyncIterator[int]:
            for i in range(n):
                yield i

        @service.method
        async def blobs(n: int) -> AsyncIterator[bytes]:
            for i in range(n):
                self.begun[name] = i + 1
                yield bytes(1000)

        self.health[name] = health = rpc.Health(["t"])
        stack = AsyncExitStack()
        server = await stack.enter_async_context(
            rpc.serve(
                [service, health.service], "127.0.0.1", self.ports.get(name, 0), mode=self.mode, **options
            )
        )
        self._running[name] = stack
        self.servers[name] = server
        self.ports[name] = server.port

    async def stop(self, name: str) -> None:
        await self._running.pop(name).aclose()

    def pool(self, picking: str = "round_robin", **options: Any) -> rpc.Pool:
        servers = [("127.0.0.1", port) for port in self.ports.values()]
        return rpc.connect_pool(servers, picking=picking, **{"reconnect": QUICK, "mode": self.mode} | options)


def ready(pool: rpc.Pool) -> int:
    return sum(t.state is rpc.State.READY and t.serving for t in pool.statistics())


async def test_calls_and_streams_over_two_servers(mode: Any) -> None:
    async with World(mode) as world:
        await world.start("a")
        await world.start("b")
        async with world.pool() as pool:
            await until(lambda: ready(pool) == 2)
            assert Counter([await pool.call("t.who") for _ in range(6)]) == {"a": 3, "b": 3}
            async with pool.stream("t.count", 5, returns=int) as items:
                assert [item async for item in items] == list(range(5))


async def test_a_server_that_shuts_down_ends_its_calls_and_gets_no_new_ones(mode: Any) -> None:
    async with World(mode) as world:
        await world.start("a", drain_timeout=None)
        await world.start("b")
        async with world.pool("pick_first") as pool:
            results: list[str] = []

            async def hold() -> None:
                results.append(await pool.call("t.hold"))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hold)
                await until(lambda: world.servers["a"].statistics().in_flight == 1)
                tasks.start_soon(world.stop, "a")
                await until(lambda: pool.statistics()[1].state is rpc.State.READY)
                assert await pool.call("t.who") == "b"
                assert results == []
                world.release.set()
            assert results == ["a"]


async def test_a_server_comes_back_and_no_idempotent_call_is_lost(mode: Any) -> None:
    policy = rpc.RetryPolicy(attempts=50, backoff=QUICK, idempotent={"t.who"})
    async with World(mode) as world:
        await world.start("a")
        async with world.pool(interceptors=[rpc.Retry(policy)]) as pool:
            assert await pool.call("t.who") == "a"
            await world.stop("a")
            answers: list[str] = []

            async def ask() -> None:
                answers.append(await pool.call("t.who"))

            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(ask)
                await world.start("a")
            assert answers == ["a"] * 5


async def test_a_broken_connection_is_made_again(mode: Any) -> None:
    async with World(mode) as world:
        await world.start("a")
        async with world.pool() as pool:
            (connection,) = world.servers["a"]._connections
            connection.channel.abort()
            await until(lambda: pool.statistics()[0].connects == 2)
            assert await pool.call("t.who") == "a"


async def test_health_is_followed(mode: Any) -> None:
    async with World(mode) as world:
        await world.start("a")
        await world.start("b")
        async with world.pool(health="t") as pool:
            await until(lambda: ready(pool) == 2)
            world.health["a"].set("t", rpc.Status.NOT_SERVING)
            await until(lambda: ready(pool) == 1)
            assert Counter([await pool.call("t.who") for _ in range(4)]) == {"b": 4}
            world.health["a"].set("t", rpc.Status.SERVING)
            await until(lambda: ready(pool) == 2)


async def test_what_is_no_server_of_calls_is_said(mode: Any) -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)

    async def hang_up(stream: Any) -> None:
        await stream.aclose()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, hang_up)
        with pytest.raises(rpc.RpcError, match=f"127.0.0.1:{port}: ") as caught:
            async with rpc.connect_pool([("127.0.0.1", port)], mode=mode):
                pass
        assert caught.value.code is rpc.Code.UNAVAILABLE
        assert caught.value.not_started
        tasks.cancel_scope.cancel()
    await listener.aclose()


class Token(rpc.ClientInterceptor):
    """What a guarded server asks for, and a limit for calls that have none."""

    def mark(self, call: rpc.ClientCall) -> rpc.ClientCall:
        call.metadata["token"] = "secret"
        call.timeout = call.timeout or 60.0
        return call

    async def unary(self, call: rpc.ClientCall, proceed: Any) -> Any:
        return await proceed(self.mark(call))

    def stream(self, call: rpc.ClientCall, proceed: Any) -> Any:
        return proceed(self.mark(call))


class Guard(rpc.ServerInterceptor):
    def __init__(self) -> None:
        self.times_left: list[float] = []

    def check(self, call: rpc.ServerCall) -> None:
        if call.context.metadata.get("token") != "secret":
            raise rpc.RpcError(rpc.Code.UNAUTHENTICATED, "no valid token")

    async def unary(self, call: rpc.ServerCall, proceed: Any) -> Any:
        self.check(call)
        return await proceed(call)

    def stream(self, call: rpc.ServerCall, proceed: Any) -> Any:
        self.check(call)
        self.times_left.append(call.context.time_left)
        return proceed(call)


async def test_the_health_of_guarded_servers(mode: Any) -> None:
    """The watch has what the pool's calls have, but no limit: it lasts as long as the connection."""
    guard = Guard()
    async with World(mode) as world:
        for name in "ab":
            await world.start(name, interceptors=[guard])
        async with world.pool(health="t", interceptors=[Token()]) as pool:
            await until(lambda: len(guard.times_left) == 2)
            world.health["a"].set("t", rpc.Status.NOT_SERVING)
            await until(lambda: [t.serving for t in pool.statistics()].count(False) == 1)
            assert [await pool.call("t.who") for _ in range(4)] == ["b"] * 4
            world.health["a"].set("t", rpc.Status.SERVING)
            await until(lambda: all(t.serving for t in pool.statistics()))
    assert guard.times_left == [math.inf] * 2


@pytest.mark.parametrize("call", [rpc.Pool.call, rpc.Pool.stream], ids=["call", "stream"])
async def test_calls_of_a_picked_connection_pass_the_interceptors(mode: Any, call: Any) -> None:
    guard = Guard()
    async with World(mode) as world:
        await world.start("a", interceptors=[guard])
        async with world.pool(interceptors=[Token(), rpc.Retry(rpc.RetryPolicy())]) as pool:
            picked = pool.pick()
            assert picked is pool.pick()
            assert isinstance(picked, rpc.Client)
            assert picked.usable
            assert picked.path == mode
            if call is rpc.Pool.call:
                assert await picked.call("t.who", returns=str) == "a"
            else:
                async with picked.stream("t.count", 5, returns=int) as items:
                    assert [item async for item in items] == list(range(5))
            closed: list[rpc.Client] = []
            picked.add_close_callback(closed.append)
            picked.abort()
            await until(lambda: pool.statistics()[0].connects == 2)
            assert closed == [picked]
            again = pool.pick()
            assert again is not picked
            assert await again.call("t.who") == "a"
            del picked, again  # the connection is the pool's
            gc.collect()
            assert await pool.call("t.who") == "a"
            assert pool.statistics()[0].connects == 2


@pytest.mark.parametrize("marked", [False, True])
async def test_streams_have_their_window_and_memory(mode: Any, marked: bool) -> None:
    """Also through interceptors: those of a client, of a pool, and of a picked connection."""
    interceptors = [Token()] if marked else []
    async with World(mode) as world:
        await world.start("a")
        async with (
            world.pool(interceptors=interceptors) as pool,
            rpc.connect("127.0.0.1", world.ports["a"], mode=mode, interceptors=interceptors) as client,
        ):
            for surface in (pool, pool.pick(), client):
                async with surface.stream("t.blobs", 50, window=2000) as items:
                    assert await items.receive() == bytes(1000)
                    # (What is under way may be as much again.)
                    await until(lambda: world.begun["a"] >= 2)
                    assert await surface.call("t.who") == "a"
                    assert world.begun["a"] < 10
                async with surface.stream("t.blobs", 3, into=lambda _: bytearray(1000)) as items:
                    assert [type(item) async for item in items] == [memoryview] * 3
