"""Ends that meet: a client that closes while its server drains, closes twice, is closed when it asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiordma import rpc
from aiordma.errors import LinkError
from aiordma.testing.rpc import rpc_pair
from tests.health import settle
from tests.processes import PATIENCE

from .services import service

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiordma.testing.rpc import RpcPair

pytestmark = pytest.mark.anyio


async def test_a_call_outlasts_a_client_that_closes_and_a_server_that_drains() -> None:
    made, seen = service()
    results: list[Any] = []
    async with rpc_pair(made) as pair:

        async def call() -> None:
            results.append(await pair.client.call("t.wait"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            while not seen.running:
                await checkpoint()
            tasks.start_soon(pair.client.aclose, None)
            while pair.client.usable:
                await checkpoint()
            pair.server.drain()
            await settle()
            seen.go.set()
    assert results == ["gone"]


async def test_a_call_on_its_way_is_refused_to_a_client_that_closes() -> None:
    made, seen = service()
    errors: list[rpc.RpcError] = []
    steps: list[Any] = []
    async with rpc_pair(made) as pair:

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
            tasks.start_soon(pair.client.aclose, None)
            while pair.client.usable:
                await checkpoint()
            pair.server.drain()
        assert errors[0].not_started
        assert "shutting down" in str(errors[0])
        pair.server_end._schedule = schedule
        for step in steps:
            step()
    assert seen.started == 0


async def by_both_ends(pair: RpcPair) -> None:
    await pair.client.aclose(None)
    await pair.server.aclose(None)


@pytest.mark.parametrize(
    "close",
    [lambda pair: pair.client.aclose(None), lambda pair: pair.server.aclose(None), by_both_ends],
    ids=["client", "server", "both"],
)
async def test_several_tasks_close_it(close: Callable[[RpcPair], Awaitable[None]]) -> None:
    made, seen = service()
    closed = 0
    async with rpc_pair(made) as pair:

        async def close_it() -> None:
            nonlocal closed
            await close(pair)
            closed += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pair.client.call, "t.wait")
            while not seen.running:
                await checkpoint()
            for _ in range(3):
                tasks.start_soon(close_it)
                await settle()
            seen.go.set()
            with anyio.fail_after(PATIENCE):
                while closed < 3:
                    await checkpoint()
    assert (seen.finished, closed) == (1, 3)


@pytest.mark.parametrize("end", ["client", "server"])
async def test_one_that_is_in_a_hurry_ends_it_for_the_others(end: str) -> None:
    made, seen = service()
    closed = 0
    async with rpc_pair(made) as pair:
        aclose = pair.client.aclose if end == "client" else pair.server.aclose

        async def call() -> None:
            with pytest.raises(rpc.RpcError) as caught:
                await pair.client.call("t.wait")
            assert caught.value.code is rpc.Code.UNAVAILABLE

        async def wait_for_calls() -> None:
            nonlocal closed
            await aclose(None)
            closed += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            while not seen.running:
                await checkpoint()
            for _ in range(2):
                tasks.start_soon(wait_for_calls)
                await settle()
            with anyio.fail_after(PATIENCE):
                await aclose(0.0)
                while closed < 2:
                    await checkpoint()


async def test_one_that_gives_up_leaves_the_others_waiting() -> None:
    """It closes the server's connections only when its own time is up, and its place is taken by nobody."""
    made, seen = service()
    async with rpc_pair(made) as pair:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pair.client.call, "t.wait")
            while not seen.running:
                await checkpoint()
            (connection,) = pair.server._connections
            with anyio.move_on_after(0):
                await connection.drained()
            tasks.start_soon(pair.server.aclose, None)
            await settle()
            seen.go.set()
        assert seen.finished == 1


@pytest.mark.parametrize("how", ["closed", "aborted", "lost", "closed by the server"])
async def test_a_ping_when_it_is_over(how: str) -> None:
    async with rpc_pair(service()[0]) as pair:
        if how == "closed":
            await pair.client.aclose()
        elif how == "aborted":
            pair.client.abort()
        elif how == "lost":
            pair.client_end.break_with(LinkError("cut"))
        else:
            await pair.server.aclose()
        while pair.client.usable or not pair.client.closed:
            await checkpoint()
        with anyio.fail_after(PATIENCE), pytest.raises(rpc.RpcError) as caught:
            await pair.client.ping()
        assert caught.value.code is rpc.Code.UNAVAILABLE
        assert caught.value.not_started


@pytest.mark.parametrize("how", ["closed", "aborted", "lost", "closed by the server"])
async def test_a_ping_under_way_when_it_ends(how: str) -> None:
    async with rpc_pair(service()[0]) as pair:

        async def ping() -> None:
            with anyio.fail_after(PATIENCE), pytest.raises(rpc.RpcError) as caught:
                await pair.client.ping()
            assert caught.value.code is rpc.Code.UNAVAILABLE

        pair.server_end._schedule = lambda step: None  # it arrives at the server never
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ping)
            while not pair.client.connection._pings:
                await checkpoint()
            if how == "closed":
                await pair.client.aclose()
            elif how == "aborted":
                pair.client.abort()
            elif how == "lost":
                pair.client_end.break_with(LinkError("cut"))
            else:
                await pair.server.aclose()
