"""The end of a channel that comes before its user asks for it: a peer may close as soon as it connects."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from aiordma import memory, rpc
from aiordma.channels import channel as channels
from aiordma.config import Config
from aiordma.testing import memory_channels
from tests.health import nothing_left, until
from tests.pipes.channel_ends import End
from tests.world import DEVICE

pytestmark = pytest.mark.anyio

CONFIG = Config(device=DEVICE)
PATHS = pytest.mark.parametrize("path", ["rdma", "tcp"])


def leave(channel: Any, how: str) -> None:
    getattr(channel, how)()


async def check(channel: Any, how: str) -> None:
    """It is reported once, and not again to who asks later."""
    error = await End(channel).ended()
    assert (error is None) == (how == "close")
    late = End(channel)
    await anyio.wait_all_tasks_blocked()
    assert late.closed == []


@pytest.mark.parametrize("how", ["close", "abort"])
@PATHS
async def test_it_is_reported_soon(path: Any, how: str) -> None:
    async with nothing_left(), await channels.listen("127.0.0.1", config=CONFIG) as listener:
        one = await channels.connect("127.0.0.1", listener.port, config=CONFIG, mode=path)
        other = await listener.accept()
        leave(one.channel, how)
        if path == "rdma":
            await until(lambda: other.channel.peer_gone)  # type: ignore[attr-defined]
        await check(other.channel, how)
        await one.aclose()
        await other.aclose()


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_in_memory_too(how: str) -> None:
    one, other = memory_channels()
    leave(one, how)
    await anyio.wait_all_tasks_blocked()
    await check(other, how)


@PATHS
async def test_its_own_end_is_not_reported(path: Any) -> None:
    async with await channels.listen("127.0.0.1", config=CONFIG) as listener:
        one = await channels.connect("127.0.0.1", listener.port, config=CONFIG, mode=path)
        other = await listener.accept()
        one.channel.abort()
        if path == "rdma":
            await until(lambda: other.channel.peer_gone)  # type: ignore[attr-defined]
        told: list[object] = []
        other.channel.on_closed = told.append
        other.channel.close()
        await anyio.wait_all_tasks_blocked()
        assert told == []
        await one.aclose()
        await other.aclose()


@PATHS
async def test_a_server_forgets_who_leaves_at_once(path: Any) -> None:
    """One of memory kept each with its rings and its TCP connection, for as long as it ran."""
    service = rpc.Service("nothing")
    async with nothing_left(), memory.serve("127.0.0.1", config=CONFIG) as server:
        for _ in range(5):
            async with memory.connect("127.0.0.1", server.port, config=CONFIG, mode=path):
                pass
        await until(lambda: not server.peers)
        async with rpc.serve(service, "127.0.0.1", config=CONFIG) as calls:
            for _ in range(5):
                async with rpc.connect("127.0.0.1", calls.port, config=CONFIG, mode=path):
                    pass
