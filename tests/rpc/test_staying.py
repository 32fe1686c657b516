"""A server looks for the next call before its event loop sleeps, and stops looking when none comes."""

from __future__ import annotations

import anyio
import pytest

from aiordma.rpc import dispatch
from aiordma.testing.rpc import rpc_pair

from .services import service

pytestmark = pytest.mark.anyio


async def test_a_server_looks_once_more_after_a_call() -> None:
    async with rpc_pair(service()[0], channel={"spin": True}) as pair:
        looks: list[bool] = []
        (connection,) = pair.server._connections
        spin = connection.channel.spin

        def look() -> bool:
            looks.append(spin())
            return looks[-1]

        connection.channel.spin = look  # type: ignore[method-assign]
        for _ in range(3):
            assert await pair.client.call("t.echo", b"x") == b"x"
        await anyio.wait_all_tasks_blocked()
        await anyio.wait_all_tasks_blocked()
        assert looks
        assert looks[-1] is False
        assert not connection._staying


async def test_others_of_the_loop_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "SHARE_SECONDS", 0.0)
    async with rpc_pair(service()[0]) as pair:
        (connection,) = pair.server._connections
        busy = True
        connection.channel.spin = lambda: busy  # type: ignore[method-assign]
        assert await pair.client.call("t.echo", b"x") == b"x"
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        assert connection._staying
        busy = False
        await anyio.wait_all_tasks_blocked()
        await anyio.wait_all_tasks_blocked()
        assert not connection._staying
