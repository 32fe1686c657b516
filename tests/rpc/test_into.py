"""Results, arguments and items in memory that the receiver names: over RDMA, TCP and in memory."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator  # annotations of handlers
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from aiordma import faults, memory, rpc
from aiordma.channels.channel import connect
from aiordma.config import Config
from aiordma.links import engine as engines
from aiordma.proto import rpc as wire
from aiordma.testing.rpc import rpc_pair
from tests.health import until
from tests.world import DEVICE

pytestmark = pytest.mark.anyio

CONFIG = Config(device=DEVICE)
PATHS = ["rdma", "tcp", "memory"]
LONG = 400_000
SIZES = [0, 1, 5000, 70_000, LONG]


def pattern(size: int, seed: int = 0) -> bytes:
    return bytes((i * 7 + seed) & 255 for i in range(256)) * (size // 256) + bytes(size % 256)


class Store:
    """A service that names memory for what is put into it."""

    def __init__(self) -> None:
        self.asked: list[rpc.Incoming] = []
        self.named: list[bytearray] = []
        self.seen: list[Any] = []
        self.answer: Any = None

    def allocate(self, incoming: rpc.Incoming) -> Any:
        self.asked.append(incoming)
        if self.answer is not None:
            return self.answer(incoming)
        self.named.append(bytearray(incoming.nbytes))
        return self.named[-1]

    def service(self) -> rpc.Service:
        made = rpc.Service("m")
        made.add(self.put, into=self.allocate)
        made.add(self.store, into=self.allocate)
        for plain in (self.get, self.number, self.items, self.echo):
            made.add(plain)
        return made

    def put(self, data: memoryview) -> int:
        self.seen.append(data)
        return len(data)

    async def store(self, key: int, data: memoryview, *, offset: int = 0) -> int:
        self.seen.append((key, data, offset))
        return len(data)

    def get(self, size: int, seed: int = 0) -> bytes:
        return pattern(size, seed)

    def number(self) -> int:
        return 7

    def echo(self, data: bytes) -> bytes:
        return data

    async def items(self, sizes: list[int]) -> AsyncIterator[bytes]:
        for size in sizes:
            yield pattern(size)


@asynccontextmanager
async def served(path: str, store: Store | None = None) -> AsyncIterator[rpc.Client]:
    made = (store or Store()).service()
    if path == "memory":
        async with rpc_pair(made, channel={"receive_bytes": 1 << 20, "max_message_bytes": 1 << 23}) as pair:
            yield pair.client
        return
    mode: Any = path
    async with (
        rpc.serve(made, "127.0.0.1", config=CONFIG) as server,
        rpc.connect("127.0.0.1", server.port, config=CONFIG, mode=mode) as client,
    ):
        assert client.path == path
        yield client


def placed(client: rpc.Client) -> int:
    """Messages that went straight to memory that this end has named."""
    return client.connection.channel.statistics().large_placed


def goes_straight(path: str, size: int) -> bool:
    """Whether a value is received without a copy into memory that is not in a region."""
    if path == "tcp":
        return size > 16 << 10
    return size > 4096 and (path == "memory" or DEVICE == "soft" or size >= 128 << 10)


# ---- results


@pytest.mark.parametrize("path", PATHS)
async def test_a_result_arrives_in_the_callers_memory(path: str) -> None:
    async with served(path) as client:
        buffer = bytearray(LONG + 10)
        for size in SIZES:
            before = placed(client)
            view = await client.call("m.get", size, into=buffer)
            assert type(view) is memoryview
            assert (len(view), view.readonly, view.obj is None) == (size, False, False)
            assert buffer[:size] == pattern(size)
            if size:
                view[0] = 99
                assert buffer[0] == 99
            assert placed(client) - before == goes_straight(path, size)
            view.release()
        gc.collect()
        buffer.append(0)  # nothing holds it any more


@pytest.mark.parametrize("path", PATHS)
async def test_a_result_that_does_not_fit_touches_nothing(path: str) -> None:
    async with served(path) as client:
        for size in SIZES[1:]:
            buffer = bytearray(b"?" * (size - 1))
            with pytest.raises(rpc.RpcError, match="nothing was written") as caught:
                await client.call("m.get", size, into=buffer)
            assert caught.value.code is rpc.Code.OUT_OF_RANGE
            assert buffer == b"?" * (size - 1)
        assert await client.call("m.echo", b"goes on") == b"goes on"
        with pytest.raises(rpc.RpcError, match="neither bytes-like nor an array"):
            await client.call("m.number", into=bytearray(10))
        with pytest.raises(rpc.RpcError, match="UNIMPLEMENTED"):
            await client.call("m.nothing", into=bytearray(10))


async def test_memory_that_cannot_be_named() -> None:
    async with served("memory") as client:
        for wrong, error, text in (
            (b"read-only", BufferError, "writable"),
            (memoryview(bytearray(10))[::2], BufferError, "one piece"),
            (7, TypeError, "into=int"),
        ):
            with pytest.raises(error, match=text):
                await client.call("m.get", 1, into=wrong)
        assert client.connection.calls == 0


@pytest.mark.parametrize("path", ["rdma", "tcp"])
async def test_a_region_and_pieces_of_it(path: str) -> None:
    async with served(path) as client, await memory.alloc(2 * LONG, config=CONFIG) as region:
        await client.call("m.get", LONG, 1, into=region)
        await client.call("m.get", LONG, 2, into=region[LONG:])
        assert bytes(region[:].view) == pattern(LONG, 1) + pattern(LONG, 2)
        assert placed(client) == 2
        await region.aclose()
        await client.call(
            "m.get", LONG, 3, into=region
        )  # closed, it is memory still, but no device is told of it
        assert bytes(memoryview(region)[:LONG]) == pattern(LONG, 3)
        assert not region._local


@pytest.mark.parametrize("path", PATHS)
async def test_many_at_once_each_to_its_own(path: str) -> None:
    async with served(path) as client:
        buffers = [bytearray(LONG) for _ in range(12)]

        async def one(seed: int) -> None:
            await client.call("m.get", LONG, seed, into=buffers[seed])

        async with anyio.create_task_group() as tasks:
            for seed in range(12):
                tasks.start_soon(one, seed)
        for seed, buffer in enumerate(buffers):
            assert buffer == pattern(LONG, seed)
        assert placed(client) == 12


async def test_no_memory_of_the_engine_is_taken() -> None:
    async with served("rdma") as client:
        buffer = bytearray(LONG)
        view = await client.call("m.get", LONG, into=buffer)
        engine = engines.running()
        assert engine is not None
        assert not engine.pool.kept
        assert view.obj is not None
        lent = await client.call("m.get", LONG, returns=memoryview)
        assert len(engine.pool.kept) == 1
        del lent
        assert all(not g._link_memory._registrations for g in engine.all_groups if g._link_memory is not None)


@pytest.mark.parametrize("how", ["cancelled", "timeout"])
async def test_the_device_has_let_go_when_a_call_has_ended(how: str) -> None:
    async with served("rdma") as client:
        buffer = bytearray(LONG)
        engine = engines.running()
        assert engine is not None

        def under_way() -> bool:
            return any(g._link_memory is not None and g._link_memory._placements for g in engine.all_groups)

        async def call() -> None:
            if how == "timeout":
                with pytest.raises(rpc.RpcTimeout):
                    await client.call("m.get", LONG, into=buffer, timeout=1000)
            else:
                with anyio.CancelScope() as scope:
                    scopes.append(scope)
                    await client.call("m.get", LONG, into=buffer)

        scopes: list[anyio.CancelScope] = []
        with faults.injected("delay op=read ms=100"), anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                await until(under_way)
                for scope in scopes:
                    scope.cancel()
                if how == "timeout":  # as the connection's timer does
                    (calling,) = client.connection.machine.calls.values()
                    client.connection._on_deadline(calling)
            assert not under_way()
            gc.collect()
            after = bytes(buffer)
            buffer.append(0)  # nothing holds it
            buffer.pop()
        assert await client.call("m.echo", b"goes on") == b"goes on"
        assert buffer == after  # nor wrote to it later
        await client.call("m.get", LONG, into=buffer)
        assert buffer == pattern(LONG)


@pytest.mark.parametrize("path", PATHS)
async def test_cancelled_at_any_moment(path: str) -> None:
    """What comes too late goes nowhere; the connection goes on."""
    async with served(path) as client:
        for turns in range(30):
            buffer = bytearray(LONG)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_quiet_call, client, buffer)
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            after = bytes(buffer)
            assert await client.call("m.echo", b"goes on", timeout=20) == b"goes on"
            assert buffer == after
            buffer.append(0)
        assert client.connection.calls == 0


async def _quiet_call(client: rpc.Client, buffer: bytearray) -> None:
    (await client.call("m.get", LONG, into=buffer)).release()


async def test_a_lost_link_ends_the_call() -> None:
    async with served("rdma") as client:
        buffer = bytearray(LONG)
        engine = engines.running()
        assert engine is not None
        with faults.injected("delay op=read ms=5000"), anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:

                async def call() -> None:
                    with pytest.raises(rpc.RpcError) as caught:
                        await client.call("m.get", LONG, into=buffer)
                    assert caught.value.code is rpc.Code.UNAVAILABLE

                tasks.start_soon(call)
                await until(
                    lambda: any(g._link_memory and g._link_memory._placements for g in engine.all_groups)
                )
                for group in list(engine.all_groups):
                    group.link.queue_pair.break_link(RuntimeError("broken by the test"))


async def test_through_interceptors_and_pools() -> None:
    class Both(rpc.ClientInterceptor):
        async def unary(self, call: rpc.ClientCall, proceed: Any) -> Any:
            assert type(call.into) is bytearray
            return await proceed(call)

    plain: dict[str, Any] = {}
    intercepted: dict[str, Any] = {"interceptors": [Both()]}
    async with rpc.serve(Store().service(), "127.0.0.1", config=CONFIG) as server:
        for keywords in plain, intercepted:
            async with (
                rpc.connect("127.0.0.1", server.port, config=CONFIG, **keywords) as client,
                rpc.connect_pool([("127.0.0.1", server.port)], config=CONFIG, **keywords) as pool,
            ):
                for caller in (client, pool):
                    buffer = bytearray(LONG)
                    await caller.call("m.get", LONG, into=buffer)
                    assert buffer == pattern(LONG)


# ---- arguments


@pytest.mark.parametrize("path", PATHS)
async def test_an_argument_arrives_in_memory_that_the_method_names(path: str) -> None:
    store = Store()
    async with served(path, store) as client:
        for size in SIZES:
            data = pattern(size)
            assert await client.call("m.put", data) == size
            view = store.seen.pop()
            assert type(view) is memoryview
            assert not view.readonly
            assert view == data
            assert store.named[-1] == data
            if size:
                view[0] = 99
                assert store.named[-1][0] == 99
        assert [each.nbytes for each in store.asked] == SIZES  # asked once for each
        assert {each[1:3] for each in store.asked} == {(None, None)}


@pytest.mark.parametrize("path", PATHS)
async def test_the_allocator_knows_the_other_arguments(path: str) -> None:
    store = Store()
    rows = [bytearray(LONG) for _ in range(4)]
    store.answer = lambda incoming: rows[incoming.arguments["key"]]
    async with served(path, store) as client:
        for key, size in enumerate((100, 20_000, LONG)):
            data = pattern(size, key)
            assert await client.call("m.store", key, data, offset=5) == size
            assert rows[key][:size] == data
            assert store.asked[-1].arguments == {"key": key, "offset": 5}
            assert store.seen[-1][0::2] == (key, 5)
        assert len(store.asked) == 3


@pytest.mark.parametrize("path", PATHS)
async def test_first_calls_that_are_made_at_once(path: str) -> None:
    """Only the first one names its method; the others come before that was handed over."""
    store = Store()
    async with served(path, store) as client:
        async with anyio.create_task_group() as tasks:
            for seed in range(8):
                tasks.start_soon(client.call, "m.put", pattern(LONG, seed))
        assert {bytes(each[:256]) for each in store.named} == {pattern(256, seed) for seed in range(8)}
        assert len(store.asked) == 8


@pytest.mark.parametrize("size", [100, LONG])
@pytest.mark.parametrize(
    ("answer", "code", "text"),
    [
        (lambda _: None, "OUT_OF_RANGE RESOURCE_EXHAUSTED", "no room"),
        (lambda incoming: bytearray(incoming.nbytes - 1), "OUT_OF_RANGE", "the memory for it has"),
        (lambda incoming: bytes(incoming.nbytes), "UNKNOWN", "handler failed"),
        (lambda incoming: 1 / 0, "UNKNOWN", "handler failed"),
    ],
)
@pytest.mark.parametrize("path", ["rdma", "tcp"])
async def test_allocators_that_refuse_or_fail(
    path: str, size: int, answer: Any, code: str, text: str
) -> None:
    store = Store()
    store.answer = answer
    async with served(path, store) as client:
        for _ in range(2):
            with pytest.raises(rpc.RpcError, match=text) as caught:
                await client.call("m.put", bytes(size))
            assert caught.value.code.name in code.split()
        store.answer = lambda incoming: (_ for _ in ()).throw(MemoryError)
        with pytest.raises(rpc.RpcError, match="no memory") as caught:
            await client.call("m.put", bytes(size))
        assert caught.value.code is rpc.Code.RESOURCE_EXHAUSTED
        store.answer = lambda incoming: (_ for _ in ()).throw(rpc.RpcError(rpc.Code.PERMISSION_DENIED, "no"))
        with pytest.raises(rpc.RpcError) as caught:
            await client.call("m.put", bytes(size))
        assert caught.value.code is rpc.Code.PERMISSION_DENIED
        assert store.seen == []
        store.answer = None
        assert await client.call("m.put", bytes(size)) == size


async def test_methods_that_cannot_have_an_allocator() -> None:
    service = rpc.Service("s")

    def none(data: bytes) -> None:
        """Not called."""

    def two(a: memoryview, b: memoryview) -> None:
        """Not called."""

    def one(a: memoryview) -> None:
        """Not called."""

    for handler, text in ((none, "there is none"), (two, "'a', 'b'")):
        with pytest.raises(TypeError, match=text):
            service.add(handler, into=lambda incoming: bytearray(incoming.nbytes))
    with pytest.raises(TypeError, match="must be a function"):
        service.add(one, into=bytearray(10))  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["rdma", "tcp"])
async def test_a_method_of_an_object_and_a_region(path: str) -> None:
    async with await memory.alloc(LONG, config=CONFIG) as region:

        class Blocks:
            @rpc.method(into=lambda _: region)
            async def write(self, data: memoryview) -> bool:
                return not data.readonly

        mode: Any = path
        async with (
            rpc.serve(rpc.Service("b", Blocks()), "127.0.0.1", config=CONFIG) as server,
            rpc.connect("127.0.0.1", server.port, config=CONFIG, mode=mode) as client,
        ):
            assert await client.call("b.write", pattern(LONG))
            assert bytes(region[:].view) == pattern(LONG)


async def test_hostile_calls_are_asked_about_no_more_than_others() -> None:
    """Calls that are none, for methods that are not there, or with lengths that do not fit."""
    store = Store()
    async with rpc.serve(store.service(), "127.0.0.1", config=CONFIG) as server:
        for path in ("rdma", "tcp"):
            mode: Any = path
            heads = {
                "a description that is none": wire.call_head(1, 0, 3, 0, b"m.put") + b"\0\0\0\x01\xc1",
                "one that is longer": wire.call_head(1, 0, 3, 0, b"m.put") + b"\0\0\1\0\xc0",
                "bytes in the head": wire.call_head(1, 0, 0, 0, b"m.put") + b"more",
                "no such method": wire.call_head(1, 0, 0, 0, b"m.nothing"),
                "a number without a name": wire.call_head(1, 0, 0, 77),
                "an encoding that is none": wire.call_head(1, 0, 9, 0, b"m.put"),
                "no call": b"\xff" * 12,
            }
            for head in heads.values():
                connected = await connect("127.0.0.1", server.port, config=CONFIG, mode=mode)
                channel = connected.detach()
                messages: list[Any] = []
                ended: list[Any] = []
                channel.on_message = messages.append
                channel.on_closed = ended.append
                assert channel.try_send(wire.hello_message(wire.Hello(0, 0, 1000, 1000)))
                assert channel.try_send(head, bytes(LONG))
                with anyio.fail_after(20):
                    while len(messages) < 2 and not ended:
                        await anyio.lowlevel.checkpoint()
                channel.abort()
        # Only bytes in the head are a value like any other, and that is not put together before it has come.
        assert [each.nbytes for each in store.asked] == [LONG + 4] * 2
        assert len(store.seen) == 2


# ---- items


@pytest.mark.parametrize("path", PATHS)
async def test_items_arrive_in_memory_that_the_caller_names(path: str) -> None:
    named: list[bytearray] = []

    def allocate(incoming: rpc.Incoming) -> bytearray:
        assert incoming.arguments == {}
        named.append(bytearray(incoming.nbytes))
        return named[-1]

    async with served(path) as client:
        for window in (0, 1):
            named.clear()
            async with client.stream("m.items", SIZES * 3, into=allocate, window=window) as items:
                got = [item async for item in items]
            assert [bytes(item) for item in got] == [pattern(size) for size in SIZES * 3]
            assert not any(item.readonly for item in got)
            assert sorted(map(len, named)) == sorted(SIZES * 3)
            assert sorted(map(bytes, got)) == sorted(map(bytes, named))
        assert placed(client) == 2 * 3 * sum(goes_straight(path, size) for size in SIZES)
        with pytest.raises(TypeError, match="must be a function"):
            client.stream("m.items", [1], into=bytearray(9))  # type: ignore[arg-type]


async def test_a_stream_that_is_left_lets_go_of_its_memory() -> None:
    row = bytearray(LONG)
    async with served("rdma") as client:
        engine = engines.running()
        assert engine is not None

        def under_way() -> bool:
            return any(g._link_memory is not None and g._link_memory._placements for g in engine.all_groups)

        with faults.injected("delay op=read ms=100"), anyio.fail_after(20):
            async with client.stream("m.items", [LONG] * 3, into=lambda _: row):
                await until(under_way)
            assert not under_way()
            gc.collect()
            row.append(0)
        assert await client.call("m.echo", b"goes on") == b"goes on"
