"""Ends that meet: a client that closes while its server drains, is closed when it asks."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiordma import rpc
from aiordma.errors import LinkError
from aiordma.testing.rpc import rpc_pair
from tests.health import settle
from tests.processes import PATIENCE

from .services import service

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
