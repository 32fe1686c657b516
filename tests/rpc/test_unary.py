"""Unary calls over channels in memory: what comes back, what does not, and what is left behind."""

from __future__ import annotations

import logging
import math
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiordma import rpc
from aiordma.errors import LinkError
from aiordma.testing.channel import memory_channels
from aiordma.testing.rpc import rpc_pair
from tests.health import settle

from .services import service

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("method", ["echo", "echo_async", "echo_late"])
@pytest.mark.parametrize("spin", [False, True])
@pytest.mark.parametrize("size", [0, 64, 5000])
async def test_echo(method: str, spin: bool, size: int) -> None:
    async with rpc_pair(service()[0], channel={"spin": spin}) as pair:
        for i in range(3):
            data = bytes([i]) * size
            assert await pair.client.call(f"t.{method}", data) == data


async def test_typed_arguments_and_results() -> None:
    async with rpc_pair(service()[0]) as pair:
        call = pair.client.call
        assert await call("t.add", 1, 2, returns=int) == 3
        assert await call("t.add", 1) == 2
        assert await call("t.add", b=5, a=1) == 6
        view = await call("t.view", b"x" * 5000, returns=memoryview)
        assert type(view) is memoryview
        assert view == b"x" * 5000
        with pytest.raises(rpc.RpcError, match="'a'") as caught:
            await call("t.add", "one")
        assert caught.value.code is rpc.Code.INVALID_ARGUMENT
        with pytest.raises(TypeError):
            await call("t.add", object())


@pytest.mark.parametrize("method", ["fail", "fail_async"])
async def test_errors_travel_with_code_message_details_and_metadata(method: str) -> None:
    async with rpc_pair(service()[0]) as pair:
        with pytest.raises(rpc.RpcError) as caught:
            await pair.client.call(f"t.{method}", "rpc")
        error = caught.value
        assert (error.code, error.message, error.details) == (rpc.Code.NOT_FOUND, "no such key", b"details")
        assert error.metadata == {"where": "here"}
        assert not error.not_started


@pytest.mark.parametrize("method", ["fail", "fail_async"])
async def test_exceptions_of_handlers_stay_at_home(method: str, caplog: pytest.LogCaptureFixture) -> None:
    async with rpc_pair(service()[0]) as pair:
        with caplog.at_level(logging.ERROR, "aiordma.rpc"), pytest.raises(rpc.RpcError) as caught:
            await pair.client.call(f"t.{method}", "other")
        assert caught.value.code is rpc.Code.UNKNOWN
        assert "secret" not in str(caught.value)
        assert caught.value.details is None
        (record,) = caplog.records
        assert f"t.{method}" in record.getMessage()
        assert record.exc_info is not None
        assert await pair.client.call("t.echo", b"still there") == b"still there"


async def test_exceptions_of_handlers_are_sent_when_asked_for() -> None:
    async with rpc_pair(service()[0], expose_errors=True) as pair:
        with pytest.raises(rpc.RpcError, match="ZeroDivisionError: secret") as caught:
            await pair.client.call("t.fail", "other")
        assert b"Traceback" in (caught.value.details or b"")


async def test_what_cannot_be_called() -> None:
    async with rpc_pair(service()[0]) as pair:
        for method, text in (("t.nothing", "no such method"), ("t.count", "stream"), ("t.total", "stream")):
            for _ in range(2):
                with pytest.raises(rpc.RpcError, match=text) as caught:
                    await pair.client.call(method, 1)
                assert caught.value.code is rpc.Code.UNIMPLEMENTED
        with pytest.raises(ValueError, match="method name"):
            await pair.client.call("x" * 300)
        with pytest.raises(rpc.RpcError):
            await pair.client.call("t.unsendable")
        assert pair.client.in_flight.available == pair.client.in_flight.limit


async def test_messages_that_are_too_long() -> None:
    async with rpc_pair(service()[0], channel={"max_message_bytes": 10000}) as pair:
        with pytest.raises(ValueError, match="10000"):
            await pair.client.call("t.echo", bytes(10001))
        with pytest.raises(rpc.RpcError, match="10000") as caught:
            await pair.client.call("t.big", 10001)
        assert caught.value.code is rpc.Code.RESOURCE_EXHAUSTED
        assert await pair.client.call("t.big", 9000) == bytes(9000)
        assert pair.client.connection.calls == 0
        assert pair.client.in_flight.available == pair.client.in_flight.limit


async def test_metadata_and_context() -> None:
    async with rpc_pair(service()[0]) as pair:
        sent: dict[str, str | bytes] = {"token": b"\x00", "user": "é"}
        answer = await pair.client.call("t.context", 7, metadata=sent, timeout=50.0)
        assert answer["metadata"] == sent
        assert answer["x"] == 7
        assert 0 < answer["time_left"] < 50.001  # uvloop counts milliseconds, and sums of floats round
        assert answer["peer"] == "client"
        reply = await pair.client.connection.call_raw("t.context", 1, b"\x91\x07")
        assert reply.metadata == {"initial": "i"}
        assert reply.trailing_metadata == {"trailing": b"t"}
        with pytest.raises(ValueError, match="lower case"):
            await pair.client.call("t.context", 7, metadata={"User": "x"})
        with pytest.raises(Exception, match="of metadata"):
            await pair.client.call("t.context", 7, metadata={"user": "x" * 20000})
        assert pair.client.in_flight.available == pair.client.in_flight.limit


async def test_cancelling_the_caller_cancels_the_handler() -> None:
    made, seen = service()
    async with rpc_pair(made) as pair:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pair.client.call, "t.wait")
            while not seen.running:
                await checkpoint()
            tasks.cancel_scope.cancel()
        while pair.client.connection.calls:
            await checkpoint()
        assert (seen.cancelled, seen.finished, seen.running) == (1, 0, 0)
        assert pair.client.in_flight.available == pair.client.in_flight.limit
        assert await pair.client.call("t.echo", b"x") == b"x"


async def test_a_late_reply_is_dropped_and_holds_its_credit_until_then() -> None:
    made, seen = service()
    async with rpc_pair(made, calls=2) as pair:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pair.client.call, "t.stubborn")
            while not seen.running:
                await checkpoint()
            tasks.cancel_scope.cancel()
        assert pair.client.connection.calls == 1
        assert pair.client.in_flight.available == 1
        assert await pair.client.call("t.echo", b"other") == b"other"
        seen.go.set()
        while pair.client.connection.calls:
            await checkpoint()
        assert seen.finished == 1
        assert pair.client.in_flight.available == 2


async def test_deadlines_are_enforced_on_both_sides() -> None:
    made, seen = service()
    async with rpc_pair(made) as pair:
        with pytest.raises(TimeoutError) as caught:
            await pair.client.call("t.wait", timeout=0.01)
        assert isinstance(caught.value, rpc.RpcTimeout)
        while pair.client.connection.calls:
            await checkpoint()
        # The server's own clock: the client keeps quiet, because it believes that its timer is set.
        pair.client.connection._timer_at = -math.inf
        with pytest.raises(rpc.RpcTimeout, match="before the handler ended"):
            await pair.client.call("t.wait", timeout=0.01)
        for timeout in (0, -1.0):
            with pytest.raises(rpc.RpcTimeout):
                await pair.client.call("t.wait", timeout=timeout)
        assert await pair.client.call("t.echo", b"", timeout=1e300) == b""
        # (One that the deadline met before its handler began has not begun.)
        assert seen.cancelled == seen.started <= 2
        assert seen.running == pair.client.connection.calls == 0


async def test_calls_beyond_the_window_wait_in_order() -> None:
    made, seen = service()
    async with rpc_pair(made, calls=1) as pair:
        order: list[int] = []

        async def call(i: int) -> None:
            await pair.client.call("t.wait")
            order.append(i)

        async with anyio.create_task_group() as tasks:
            for i in range(10):
                tasks.start_soon(call, i)
                await settle(5)
            assert seen.running == 1
            assert pair.client.in_flight.waiting == 9
            with pytest.raises(rpc.RpcTimeout):
                await pair.client.call("t.echo", b"", timeout=0.01)
            seen.go.set()
        assert seen.most_running == 1
        assert order == list(range(10))


async def test_a_channel_without_room_costs_waiting_not_memory() -> None:
    made, _ = service()
    async with rpc_pair(made, channel={"receive_bytes": 3000}) as pair:
        results: list[bytes] = []

        async def call(i: int) -> None:
            results.append(await pair.client.call("t.echo_late", bytes([i]) * 1000))

        async with anyio.create_task_group() as tasks:
            for i in range(100):
                tasks.start_soon(call, i)
        assert sorted(results) == [bytes([i]) * 1000 for i in range(100)]
        assert pair.client_end.statistics().times_blocked
        assert pair.client_end.statistics().receive_high_water <= 3000


async def test_cancelled_while_waiting_for_room_was_never_made() -> None:
    steps: list[Any] = []
    made, seen = service()
    async with rpc_pair(made, channel={"receive_bytes": 2000}) as pair:
        client = pair.client
        await client.call("t.echo", b"")
        pair.server_end._schedule = steps.append  # from now on nothing arrives
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(client.call, "t.wait")
            await settle()
            tasks.start_soon(client.call, "t.echo", bytes(1900))
            await settle()
            assert client.connection.calls == 4
            with pytest.raises(rpc.RpcTimeout, match=r"no (room|time)"):
                await client.call("t.echo", bytes(1500), timeout=0.01)
            tasks.cancel_scope.cancel()
        assert client.connection.calls == 3
        pair.server_end._schedule = pair.client_end._schedule
        for step in steps:
            step()
        while client.connection.calls:
            await checkpoint()
        assert seen.running == 0
        assert await client.call("t.echo", b"x") == b"x"


@pytest.mark.parametrize("orderly", [True, False])
async def test_a_connection_that_ends_fails_its_calls_with_the_reason(orderly: bool) -> None:
    made, seen = service()
    async with rpc_pair(made) as pair:
        errors: list[rpc.RpcError] = []

        async def call(method: str) -> None:
            with pytest.raises(rpc.RpcError) as caught:
                await pair.client.call(method)
            errors.append(caught.value)

        async with anyio.create_task_group() as tasks:
            for method in ("t.wait", "t.wait", "t.stubborn"):
                tasks.start_soon(call, method)
            while seen.running < 3:
                await checkpoint()
            if orderly:
                pair.server_end.close()
            else:
                pair.client_end.break_with(LinkError("cable cut", "there"))
        assert [error.code for error in errors] == [rpc.Code.UNAVAILABLE] * 3
        assert not any(error.not_started for error in errors)
        for error in errors:
            assert ("closed by the peer" if orderly else "cable cut") in str(error)
            assert isinstance(error.__cause__, LinkError)
        assert not pair.client.usable
        assert isinstance(await pair.client.wait_closed(), LinkError)
        with pytest.raises(rpc.RpcError) as caught:
            await pair.client.call("t.echo", b"")
        assert caught.value.not_started
        if not orderly:
            while seen.running > 1:
                await checkpoint()
            assert seen.cancelled == 2
        seen.go.set()
        await settle()


@pytest.mark.slow
async def test_ten_thousand_calls_in_flight() -> None:
    made, seen = service()
    async with rpc_pair(made, calls=10_000) as pair:
        done = 0

        async def call() -> None:
            nonlocal done
            assert await pair.client.call("t.wait", returns=str) == "gone"
            done += 1

        async with anyio.create_task_group() as tasks:
            for _ in range(10_000):
                tasks.start_soon(call)
            while seen.running < 10_000:
                await checkpoint()
            assert pair.server.statistics().in_flight == 10_000
            seen.go.set()
        assert done == 10_000
        assert pair.client.connection.calls == 0


async def test_ping() -> None:
    async with rpc_pair(service()[0]) as pair:
        assert await pair.client.ping(5.0) >= 0
        pair.client_end.break_with(LinkError("cut"))
        with pytest.raises(rpc.RpcError, match="cut"):
            await pair.client.ping()


async def test_interceptors_on_both_sides() -> None:
    made, _ = service()
    seen: list[Any] = []

    class Client(rpc.ClientInterceptor):
        async def unary(self, call: rpc.ClientCall, proceed: Any) -> Any:
            call.metadata["from"] = "interceptor"
            result = await proceed(call)
            seen.append(("client", call.method, result))
            return result

    class Server(rpc.ServerInterceptor):
        others_pass = True

        async def unary(self, call: rpc.ServerCall, proceed: Any) -> Any:
            seen.append(("server", call.method.name, call.context.metadata, call.args))
            if call.args[0] == b"forbidden":
                raise rpc.RpcError(rpc.Code.PERMISSION_DENIED, "no")
            return (await proceed(call)) + b"!"

    async with rpc_pair(made, client_interceptors=[Client()], interceptors=[Server()]) as pair:
        for method in ("t.echo", "t.echo_async"):
            assert await pair.client.call(method, b"x") == b"x!"
        assert seen[:2] == [
            ("server", "t.echo", {"from": "interceptor"}, [b"x"]),
            ("client", "t.echo", b"x!"),
        ]
        with pytest.raises(rpc.RpcError, match="no"):
            await pair.client.call("t.echo", b"forbidden")


async def test_one_method_name_one_service() -> None:
    made, _ = service()
    with pytest.raises(ValueError, match="served twice"):
        rpc.Server([made, service()[0]])
    with pytest.raises(ValueError, match="calls=0"):
        rpc.Server(made, calls=0)


async def test_a_channel_that_ended_before_hello_is_told_at_once() -> None:
    client_end, server_end = memory_channels()
    server_end.abort()
    await settle()
    with anyio.fail_after(5), pytest.raises(rpc.RpcError) as caught:
        await rpc.Connection.open(client_end, "server", timeout=60)
    assert caught.value.code is rpc.Code.UNAVAILABLE
    assert caught.value.not_started
