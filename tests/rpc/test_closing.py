"""Ends that meet: a client that closes while its server drains."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiordma import rpc
from aiordma.testing.rpc import rpc_pair
from tests.health import settle

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
