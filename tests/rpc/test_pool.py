"""A client of several servers: connections that come and go, waiting, health, errors. Servers in memory."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from aiordma.rpc.balance import Ejection, Picking, State
from aiordma.rpc.errors import Code, RpcError, RpcTimeout
from aiordma.rpc.health import Health, Status
from aiordma.rpc.interceptor import ClientCall, ClientInterceptor, StreamProceed, UnaryProceed
from aiordma.rpc.pool import Pool
from aiordma.rpc.retry import Backoff, Retry, RetryPolicy
from tests.health import until
from tests.virtual import in_virtual_time

pytestmark = pytest.mark.anyio

QUICK = Backoff(first_s=0.001, most_s=0.002)
NEVER = Backoff(first_s=1e6, most_s=1e6)


class Server:
    """What a connection to it would do."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.up = True
        self.health: Health | None = None
        self.connections: set[Connection] = set()
        self.connects = 0
        self.hold: anyio.Event | None = None
        self.error: RpcError | None = None

    def stop(self, error: BaseException | None = None) -> None:
        self.up = False
        for connection in list(self.connections):
            connection.end(error)


class Connection:
    """In the place of a client."""

    addresses = None, None

    def __init__(self, server: Server) -> None:
        self.server = server
        self.ended = anyio.Event()
        self.error: BaseException | None = None

    def end(self, error: BaseException | None = None) -> None:
        self.error = error
        self.ended.set()

    async def wait_closed(self) -> BaseException | None:
        await self.ended.wait()
        return self.error

    async def aclose(self, timeout: float | None = 0.0) -> None:  # noqa: ASYNC109
        self.drained_for = timeout
        if self.server.hold is not None:
            await self.server.hold.wait()

    async def call(self, method: str, /, *args: Any, timeout: float | None = None, **options: Any) -> Any:  # noqa: ASYNC109
        await anyio.lowlevel.checkpoint()
        assert not self.ended.is_set(), "a call to a connection that takes none"
        if self.server.hold is not None:
            await self.server.hold.wait()
        if self.server.error is not None:
            raise self.server.error
        return self.server.name

    def stream(self, method: str, /, *args: Any, **options: Any) -> Any:
        health = self.server.health

        @contextlib.asynccontextmanager
        async def opened() -> AsyncIterator[AsyncIterator[Any]]:
            if health is None or not method.startswith("rpc.health"):
                raise RpcError(Code.UNIMPLEMENTED, method)
            statuses = health.watch(*args)
            try:
                yield statuses
            finally:
                await statuses.aclose()  # type: ignore[attr-defined]

        return opened()


class World:
    """Servers by name, and how they are connected to."""

    def __init__(self, *names: str) -> None:
        self.servers = {name: Server(name) for name in names}

    def __getitem__(self, name: str) -> Server:
        return self.servers[name]

    @contextlib.asynccontextmanager
    async def connect(self, address: str) -> AsyncIterator[Any]:
        server = self.servers[address]
        server.connects += 1
        await anyio.lowlevel.checkpoint()
        if not server.up:
            raise ConnectionRefusedError(f"{address} is down")
        connection = Connection(server)
        server.connections.add(connection)
        try:
            yield connection
        finally:
            server.connections.discard(connection)

    def pool(self, picking: Picking = Picking.ROUND_ROBIN, **options: Any) -> Pool:
        options = {"reconnect": QUICK} | options
        return Pool(list(self.servers), self.connect, picking=picking, **options)


def ready(pool: Pool) -> set[str]:
    return {t.address for t in pool.statistics() if t.state is State.READY}


async def test_calls_go_round_and_connections_are_closed() -> None:
    world = World("a", "b", "c")
    async with world.pool() as pool:
        await until(lambda: len(ready(pool)) == 3)
        assert Counter([await pool.call("m") for _ in range(6)]) == {"a": 2, "b": 2, "c": 2}
        assert [t.calls for t in pool.statistics()] == [2, 2, 2]
    assert not any(server.connections for server in world.servers.values())
    with pytest.raises(RpcError, match="closed"):
        await pool.call("m")


async def test_pick_first_connects_to_one_and_goes_on_to_the_next() -> None:
    world = World("a", "b")
    async with world.pool(Picking.PICK_FIRST) as pool:
        assert [await pool.call("m") for _ in range(3)] == ["a"] * 3
        assert world["b"].connects == 0
        world["a"].stop(OSError("cable cut"))
        await until(lambda: ready(pool) == {"b"})
        assert await pool.call("m") == "b"


async def test_a_server_that_comes_back_is_used_again() -> None:
    world = World("a")
    async with world.pool() as pool:
        world["a"].stop()
        await until(lambda: not ready(pool) and world["a"].connects > 2)
        with pytest.raises(RpcError) as caught:
            await pool.call("m")
        assert caught.value.code is Code.UNAVAILABLE
        assert caught.value.not_started
        assert "a is down" in str(caught.value)
        assert isinstance(caught.value.__cause__, ConnectionRefusedError)
        world["a"].up = True
        await until(lambda: bool(ready(pool)))
        assert await pool.call("m") == "a"
        assert pool.statistics()[0].connects == 2


async def test_calls_of_a_server_that_shuts_down_may_end() -> None:
    world = World("a")
    async with world.pool() as pool:
        world["a"].hold = hold = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.call, "m")
            await anyio.wait_all_tasks_blocked()
            (old,) = world["a"].connections
            old.end(None)
            await until(lambda: world["a"].connects == 2 and bool(ready(pool)))
            assert old in world["a"].connections
            hold.set()
        await until(lambda: old not in world["a"].connections)
        assert old.drained_for == 60.0


async def test_nobody_to_be_reached_at_all() -> None:
    world = World("a", "b")
    world["a"].up = world["b"].up = False
    with pytest.raises(RpcError, match=r"a: a is down; b: b is down") as caught:
        async with world.pool(reconnect=NEVER):
            pass
    assert caught.value.code is Code.UNAVAILABLE


async def test_what_the_block_raises_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError):
        async with World("a").pool():
            raise KeyError("mine")


@in_virtual_time
async def test_a_call_waits_for_a_connection_that_was_just_lost(anyio_backend: object) -> None:
    world = World("a")
    async with world.pool(reconnect=Backoff(first_s=10, most_s=10)) as pool:
        for connection in list(world["a"].connections):
            connection.end()
        await until(lambda: not ready(pool))
        assert await pool.call("m") == "a"
        assert world["a"].connects == 2


async def test_waiting_for_a_server_ends_with_the_deadline() -> None:
    world = World("a")
    async with world.pool(reconnect=NEVER) as pool:
        for connection in list(world["a"].connections):
            connection.end()
        await until(lambda: not ready(pool))
        with pytest.raises(RpcTimeout) as caught:
            await pool.call("m", timeout=0.001)
        assert caught.value.not_started


async def test_closing_ends_those_who_wait() -> None:
    world = World("a")
    async with world.pool(reconnect=NEVER) as pool:
        for connection in list(world["a"].connections):
            connection.end()
        await until(lambda: not ready(pool))
        ended = []

        async def call() -> None:
            with pytest.raises(RpcError, match="closed"):
                await pool.call("m")
            ended.append(True)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await anyio.wait_all_tasks_blocked()
            await pool.aclose()
        assert ended


async def test_everybody_who_closes_waits_until_it_is_closed() -> None:
    world = World("a")
    leaving, go = anyio.Event(), anyio.Event()
    ended: list[int] = []

    @contextlib.asynccontextmanager
    async def connect(address: str) -> AsyncIterator[Any]:
        try:
            async with world.connect(address) as connection:
                yield connection
        finally:
            with anyio.CancelScope(shield=True):
                leaving.set()
                await go.wait()

    pool = Pool(["a"], connect)
    await pool.__aenter__()

    async def close(number: int) -> None:
        await pool.aclose()
        ended.append(number)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(close, 1)
        await leaving.wait()
        tasks.start_soon(close, 2)
        with anyio.CancelScope() as given_up:
            given_up.cancel()
            await pool.aclose()  # who gives that up does not wait
        await anyio.wait_all_tasks_blocked()
        early = list(ended)
        go.set()
    assert early == []
    assert sorted(ended) == [1, 2]
    await pool.aclose()


async def test_a_connection_that_takes_too_long() -> None:
    @contextlib.asynccontextmanager
    async def connect(address: str) -> AsyncIterator[Any]:
        await anyio.sleep_forever()
        yield Connection(Server(address))

    with pytest.raises(RpcError, match=r"not connected within 0\.001 s"):
        async with Pool(["a"], connect, reconnect=NEVER, connect_timeout_s=0.001):
            pass


async def test_the_least_loaded_gets_the_call() -> None:
    world = World("a", "b")
    async with world.pool(Picking.LEAST_LOADED) as pool:
        await until(lambda: len(ready(pool)) == 2)
        world["a"].hold = anyio.Event()
        world["b"].hold = anyio.Event()
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(pool.call, "m")
            await anyio.wait_all_tasks_blocked()
            assert [t.in_flight for t in pool.statistics()] == [2, 2]
            world["b"].hold.set()
            await anyio.wait_all_tasks_blocked()
            assert [t.in_flight for t in pool.statistics()] == [2, 0]
            assert [await pool.call("m") for _ in range(2)] == ["b", "b"]
            world["a"].hold.set()


async def test_cancelled_calls_are_not_in_flight_any_more() -> None:
    world = World("a")
    world["a"].hold = anyio.Event()
    async with world.pool() as pool:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.call, "m")
            await anyio.wait_all_tasks_blocked()
            assert pool.statistics()[0].in_flight == 1
            tasks.cancel_scope.cancel()
        assert pool.statistics()[0].in_flight == 0


async def test_a_server_that_hangs_is_left_out() -> None:
    world = World("a", "b")
    async with world.pool(ejection=Ejection(failures=3, pause=NEVER)) as pool:
        await until(lambda: len(ready(pool)) == 2)
        world["a"].error = RpcError(Code.DEADLINE_EXCEEDED)
        names = []
        for _ in range(6):
            with contextlib.suppress(RpcError):
                names.append(await pool.call("m"))
        assert [t.ejected for t in pool.statistics()] == [True, False]
        world["a"].error = None
        assert [await pool.call("m") for _ in range(4)] == ["b"] * 4


async def test_health_decides_who_gets_calls() -> None:
    world = World("a", "b", "old")
    for name in "ab":
        world[name].health = Health(["kv"])
    health = world["a"].health
    assert health is not None
    health.set("kv", Status.NOT_SERVING)
    async with world.pool(health="kv") as pool:
        await until(lambda: len(ready(pool)) == 3)
        assert Counter([await pool.call("m") for _ in range(4)]) == {"b": 2, "old": 2}
        health.set("kv", Status.SERVING)
        await until(lambda: all(t.serving for t in pool.statistics()))
        assert Counter([await pool.call("m") for _ in range(6)]) == {"a": 2, "b": 2, "old": 2}


async def test_nobody_serving() -> None:
    world = World("a")
    health = world["a"].health = Health()
    async with world.pool(health="") as pool:
        health.drain()
        await until(lambda: not pool.statistics()[0].serving)
        with pytest.raises(RpcError, match="a: not serving"):
            await pool.call("m")


async def test_retries_go_to_another_server() -> None:
    world = World("a", "b")
    retry = Retry(RetryPolicy(backoff=QUICK))
    async with world.pool(interceptors=[retry]) as pool:
        await until(lambda: len(ready(pool)) == 2)
        world["a"].error = RpcError(Code.UNAVAILABLE)
        assert [await pool.call("m", idempotent=True) for _ in range(4)] == ["b"] * 4
        assert retry.statistics.healed > 0


async def test_interceptors_see_calls_of_the_pool() -> None:
    seen = []

    class Seeing(ClientInterceptor):
        async def unary(self, call: ClientCall, proceed: UnaryProceed[ClientCall]) -> Any:
            seen.append((call.method, call.args, call.kwargs, call.metadata))
            return await proceed(call)

        def stream(self, call: ClientCall, proceed: StreamProceed[ClientCall]) -> Any:
            seen.append((call.method, call.args, call.kwargs, call.metadata))
            return proceed(call)

    world = World("a")
    world["a"].health = Health()
    async with world.pool(interceptors=[Seeing()]) as pool:
        assert await pool.call("m", 1, metadata={"k": "v"}, x=2) == "a"
        async with pool.stream("rpc.health.watch", "") as statuses:
            assert await anext(statuses) is Status.SERVING
    assert seen == [("m", (1,), {"x": 2}, {"k": "v"}), ("rpc.health.watch", ("",), {}, {})]


async def test_an_interceptor_that_fails_around_the_watch(caplog: pytest.LogCaptureFixture) -> None:
    """The server's calls will show what it is worth; and it is told."""

    class Failing(ClientInterceptor):
        def stream(self, call: ClientCall, proceed: StreamProceed[ClientCall]) -> Any:
            raise LookupError("no token for streams")

    world = World("a")
    world["a"].health = Health()
    async with world.pool(health="", interceptors=[Failing()]) as pool:
        assert await pool.call("m") == "a"
        assert world["a"].connects == 1
    assert "no token for streams" in caplog.text


async def test_streams_stay_where_they_begin() -> None:
    world = World("a")
    world["a"].health = Health()
    async with world.pool() as pool:
        async with pool.stream("rpc.health.watch", "") as statuses:
            assert await anext(statuses) is Status.SERVING
        world["a"].stop()
        await until(lambda: not ready(pool))
        with pytest.raises(RpcError) as caught:
            pool.stream("rpc.health.watch", "")
        assert caught.value.code is Code.UNAVAILABLE
