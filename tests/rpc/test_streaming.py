"""Streams over channels in memory: every kind, slow and stopped receivers, ends of every sort."""

from __future__ import annotations

import gc
import math
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiordma import rpc
from aiordma.errors import LinkError
from aiordma.testing.rpc import RpcPair, rpc_pair
from tests.health import settle

from .services import service

pytestmark = pytest.mark.anyio


async def all_over(pair: RpcPair) -> None:
    """Until no call is in flight; and nothing may be left."""
    while pair.client.connection.calls or pair.server.statistics().in_flight:
        await checkpoint()
    assert pair.client.in_flight.available == pair.client.in_flight.limit


async def send_for_ever(stream: rpc.ClientStream) -> None:
    while True:
        await stream.send(b"\x00")


async def receive_for_ever(stream: rpc.ClientStream) -> None:
    while True:
        await stream.receive()


@pytest.mark.parametrize("method", ["count", "count_async"])
@pytest.mark.parametrize("spin", [False, True])
async def test_server_streams(method: str, spin: bool) -> None:
    async with rpc_pair(service()[0], channel={"spin": spin}) as pair:
        for n in (0, 1, 100):
            async with pair.client.stream(f"t.{method}", n, returns=int) as items:
                assert [item async for item in items] == list(range(n))
        await all_over(pair)


async def test_client_streams() -> None:
    async with rpc_pair(service()[0]) as pair:
        async with pair.client.stream("t.total", 1000, returns=int) as stream:
            for i in range(100):
                await stream.send(i)
            assert await stream.result() == 1000 + 4950
        stream = pair.client.stream("t.total", 5)
        assert await stream.result() == 5
        await all_over(pair)


async def test_both_ways_at_once() -> None:
    async with rpc_pair(service()[0], window=500, client_window=500) as pair:
        async with pair.client.stream("t.double", returns=int) as stream:

            async def send() -> None:
                for i in range(300):
                    await stream.send(i)
                await stream.end()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                assert [item async for item in stream] == [2 * i for i in range(300)]
        await all_over(pair)


async def test_a_conversation_item_by_item() -> None:
    async with rpc_pair(service()[0]) as pair, pair.client.stream("t.double") as stream:
        for i in range(20):
            await stream.send(i)
            assert await stream.receive() == 2 * i
        await stream.end()
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()
        with pytest.raises(anyio.ClosedResourceError, match="ended the call"):
            await stream.send(1)


async def test_metadata_of_streams() -> None:
    async with rpc_pair(service()[0]) as pair:
        async with pair.client.stream("t.count_async", 4) as items:
            assert await items.receive() == 0
            assert items.metadata == {"n": "4"}
            assert [item async for item in items] == [1, 2, 3]
            assert items.trailing_metadata == {"sum": "6"}


async def test_a_stopped_receiver_stops_the_sender() -> None:
    made, seen = service()
    async with rpc_pair(made, client_window=10_000) as pair:
        async with pair.client.stream("t.blobs", 1000, 1000, returns=bytes) as items:
            await items.receive()
            await settle()
            assert 8 <= seen.taken <= 12
            # others are not held up
            assert await pair.client.call("t.echo", b"x") == b"x"
            taken = seen.taken
            for _ in range(100):
                await items.receive()
                await settle(3)
            assert taken < seen.taken <= 115
        await all_over(pair)


async def test_a_stopped_handler_stops_the_client() -> None:
    made, seen = service()
    async with rpc_pair(made, window=10_000) as pair:
        async with pair.client.stream("t.hold", returns=int) as stream:
            sent = 0

            async def send() -> None:
                nonlocal sent
                while True:
                    await stream.send(bytes(1000))
                    sent += 1

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                await settle(200)
                assert 8 <= sent <= 12
                assert await pair.client.call("t.echo", b"x") == b"x"
                tasks.cancel_scope.cancel()
            seen.go.set()
            size = await stream.result()
            assert size in (sent * 1000, sent * 1000 + 1000)
        await all_over(pair)


async def test_one_item_larger_than_the_window() -> None:
    async with rpc_pair(service()[0], window=100, client_window=100) as pair:
        async with pair.client.stream("t.blobs", 3, 50_000, returns=bytes) as items:
            assert [len(item) async for item in items] == [50_000] * 3
        async with pair.client.stream("t.first") as stream:
            await stream.send(bytes(50_000))
            assert await stream.result() == bytes(50_000)


async def test_items_longer_than_a_message() -> None:
    async with rpc_pair(service()[0], channel={"max_message_bytes": 5000}) as pair:
        async with pair.client.stream("t.first") as stream:
            with pytest.raises(ValueError, match="5000"):
                await stream.send(bytes(6000))
            await stream.send(b"x")
            assert await stream.result() == b"x"
        async with pair.client.stream("t.blobs", 1, 6000) as items:
            with pytest.raises(rpc.RpcError):
                await items.receive()
        await all_over(pair)


@pytest.mark.parametrize("how", ["leave", "close", "forget", "cancel"])
async def test_giving_up_a_stream_cancels_its_handler(how: str) -> None:
    made, seen = service()
    async with rpc_pair(made, client_window=500) as pair:
        if how == "leave":
            async with pair.client.stream("t.count_async", 1000) as items:
                await items.receive()
        elif how == "close":
            stream = pair.client.stream("t.count_async", 1000)
            await stream.receive()
            await stream.aclose()
            with pytest.raises(anyio.ClosedResourceError):
                await stream.receive()
        elif how == "forget":
            async for _ in pair.client.stream("t.count_async", 1000):
                break
            gc.collect()
        else:
            with anyio.CancelScope() as scope:
                async for item in pair.client.stream("t.count_async", 1000):
                    if item == 3:
                        scope.cancel()
        await all_over(pair)
        assert (seen.running, seen.finished, seen.cancelled) == (0, 0, 1)


async def test_a_handler_that_fails_after_some_items() -> None:
    async with rpc_pair(service()[0]) as pair:
        items = pair.client.stream("t.fail_in_stream", 3)
        assert [await items.receive() for _ in range(3)] == [0, 1, 2]
        with pytest.raises(rpc.RpcError, match="enough") as caught:
            await items.receive()
        assert caught.value.code is rpc.Code.ABORTED
        await all_over(pair)


async def test_a_handler_that_does_not_take_everything() -> None:
    async with rpc_pair(service()[0], window=1000) as pair:
        async with pair.client.stream("t.first", returns=bytes) as stream:
            with pytest.raises(anyio.ClosedResourceError, match="ended the call"):
                await send_for_ever(stream)
            assert await stream.result() == b"\x00"
        await all_over(pair)


async def test_items_for_a_method_that_takes_none() -> None:
    async with rpc_pair(service()[0]) as pair:
        stream = pair.client.stream("t.count_async", 10_000)
        await stream.send(b"x")
        with pytest.raises(rpc.RpcError, match="takes no stream"):
            await receive_for_ever(stream)
        with pytest.raises(rpc.RpcError, match="takes no stream"):
            await stream.send(b"x")
        await all_over(pair)


async def test_wrong_items_and_wrong_results() -> None:
    async with rpc_pair(service()[0]) as pair:
        async with pair.client.stream("t.total", 0) as stream:
            await stream.send("one")
            with pytest.raises(rpc.RpcError, match="streamed item") as caught:
                await stream.result()
            assert caught.value.code is rpc.Code.INVALID_ARGUMENT
        async with pair.client.stream("t.count", 3) as items:
            with pytest.raises(rpc.RpcError, match="iterate"):
                await items.result()
        async with pair.client.stream("t.count", 3, returns=str) as items:
            with pytest.raises(rpc.RpcError, match="an item of t"):
                await items.receive()
        # a stream for a method without one
        async with pair.client.stream("t.add", 1, 2) as stream:
            assert await stream.result() == 3
        await all_over(pair)


async def _call(client: rpc.Client, method: str) -> Any:
    return await client.call(method)


async def _iterate(client: rpc.Client, method: str) -> Any:
    async with client.stream(method) as stream:
        await stream.end()
        return [item async for item in stream]


async def _receive(client: rpc.Client, method: str) -> Any:
    async with client.stream(method) as stream:
        await stream.end()
        return await stream.receive()


async def _result(client: rpc.Client, method: str) -> Any:
    async with client.stream(method) as stream:
        return await stream.result()


async def _one() -> int:
    return 7


async def _nothing() -> None: ...


async def _items() -> AsyncIterator[int]:
    yield 7


async def _taking(items: AsyncIterator[int]) -> int:
    return 7 + sum([item async for item in items])


async def _both(items: AsyncIterator[int]) -> AsyncIterator[int]:
    yield 7
    async for item in items:
        yield item


@pytest.mark.parametrize(
    ("handler", "call", "iterate", "receive", "result"),
    [
        (_one, 7, "one value", "one value", 7),
        (_nothing, None, "one value", "one value", None),
        (_items, "call it with client.stream", [7], 7, "iterate over it"),
        (_taking, "call it with client.stream", "one value", "one value", 7),
        (_both, "call it with client.stream", [7], 7, "iterate over it"),
    ],
)
async def test_every_way_to_call_every_kind(
    handler: Any, call: Any, iterate: Any, receive: Any, result: Any
) -> None:
    made = rpc.Service("k")
    made.add(handler, name="m")
    ways = ((_call, call), (_iterate, iterate), (_receive, receive), (_result, result))
    async with rpc_pair(made) as pair:
        for way, expected in ways:
            if isinstance(expected, str):
                with pytest.raises(rpc.RpcError, match=expected):
                    await way(pair.client, "k.m")
            else:
                assert await way(pair.client, "k.m") == expected
        await all_over(pair)


async def test_deadlines_of_streams() -> None:
    made, seen = service()
    async with rpc_pair(made) as pair:
        stream = pair.client.stream("t.hold", timeout=0.02)
        with pytest.raises(rpc.RpcTimeout):
            await send_for_ever(stream)
        with pytest.raises(rpc.RpcTimeout):
            async with pair.client.stream("t.hold", timeout=0.0):
                pass
        await all_over(pair)
        assert seen.running == 0


async def test_one_task_for_each_direction() -> None:
    made, seen = service()
    async with rpc_pair(made, window=100) as pair, pair.client.stream("t.hold") as stream:
        await stream.send(bytes(100))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.send, bytes(100))
            tasks.start_soon(stream.receive)
            await settle()
            with pytest.raises(anyio.BusyResourceError):
                await stream.send(b"")
            with pytest.raises(anyio.BusyResourceError):
                await stream.receive()
            tasks.cancel_scope.cancel()
        seen.go.set()
        assert await stream.result() in (100, 200)


async def test_a_lost_connection_ends_streams_on_both_sides() -> None:
    made, seen = service()
    async with rpc_pair(made, client_window=500) as pair:
        async with pair.client.stream("t.count_async", 1000) as items:
            await items.receive()
            pair.client_end.break_with(LinkError("cable cut"))
            with pytest.raises(rpc.RpcError, match="cable cut"):
                await receive_for_ever(items)
            with pytest.raises(rpc.RpcError, match="cable cut"):
                await items.send(b"x")
        while seen.running:
            await checkpoint()
        assert seen.cancelled == 1


async def test_interceptors_around_streams() -> None:
    seen: list[Any] = []

    class Client(rpc.ClientInterceptor):
        def stream(self, call: rpc.ClientCall, proceed: Any) -> Any:
            call.metadata["who"] = "me"
            return proceed(call)

    class Server(rpc.ServerInterceptor):
        others_pass = True

        async def stream(self, call: rpc.ServerCall, proceed: Any) -> Any:
            seen.append(call.context.metadata)
            async for item in proceed(call):
                yield item + 100

    made, _ = service()
    async with rpc_pair(made, client_interceptors=[Client()], interceptors=[Server()]) as pair:
        for method in ("t.count", "t.count_async"):
            async with pair.client.stream(method, 3, returns=int) as items:
                assert [item async for item in items] == [100, 101, 102]
        assert seen == [{"who": "me"}] * 2


async def test_drain_lets_calls_end_and_refuses_new_ones() -> None:
    made, seen = service()
    async with rpc_pair(made) as pair:
        async with pair.client.stream("t.hold", returns=int) as stream:
            await stream.send(b"xyz")
            await settle()
            pair.server.drain()
            while pair.client.usable:
                await checkpoint()
            assert await pair.client.wait_closed() is None
            with pytest.raises(rpc.RpcError, match="shutting down") as caught:
                await pair.client.call("t.echo", b"")
            assert caught.value.not_started
            await stream.send(b"abc")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(pair.server.aclose)
                await settle()
                seen.go.set()
                assert await stream.result() == 6


async def test_calls_on_their_way_when_the_server_drains_were_not_started() -> None:
    made, seen = service()
    steps: list[Any] = []
    async with rpc_pair(made) as pair:
        errors: list[rpc.RpcError] = []

        async def call() -> None:
            with pytest.raises(rpc.RpcError) as caught:
                await pair.client.call("t.wait")
            errors.append(caught.value)

        schedule = pair.server_end._schedule
        pair.server_end._schedule = steps.append  # nothing arrives at the server for now
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            while not pair.client.connection.calls:
                await checkpoint()
            pair.server.drain()
        assert errors[0].not_started
        assert errors[0].code is rpc.Code.UNAVAILABLE
        pair.server_end._schedule = schedule
        for step in steps:
            step()
        assert seen.started == 0
        assert pair.server.statistics().in_flight == 0


@pytest.mark.parametrize("patience", [0.0, 0.02])
async def test_shutting_down_with_a_deadline_cancels_handlers(patience: float) -> None:
    made, seen = service()
    async with rpc_pair(made) as pair:
        errors: list[rpc.RpcError] = []

        async def call() -> None:
            with pytest.raises(rpc.RpcError) as caught:
                await pair.client.call("t.wait")
            errors.append(caught.value)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            while not seen.running:
                await checkpoint()
            await pair.server.aclose(patience)
        assert seen.cancelled == 1
        assert errors[0].code is rpc.Code.UNAVAILABLE
        assert pair.server.statistics() == (0, 0, 1)


async def test_closing_the_client_waits_as_told() -> None:
    made, seen = service()
    async with rpc_pair(made) as pair:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pair.client.call, "t.wait")
            while not seen.running:
                await checkpoint()
            tasks.start_soon(pair.client.aclose, None)
            await settle()
            with pytest.raises(rpc.RpcError, match="closed by this end"):
                await pair.client.call("t.echo", b"")
            seen.go.set()
        assert seen.finished == 1
        assert not pair.client.usable


async def test_infinite_deadline_in_the_context() -> None:
    made, seen = service()
    async with rpc_pair(made) as pair:
        await pair.client.call("t.context", 1)
        context = seen.contexts[0]
        assert context.time_left == context.deadline == math.inf
        assert context.cancelled  # over
        assert "t.context" in repr(context)
