"""channel.connect() cancelled at every await: nothing leaks, and everything works afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aiordma.channels import channel
from tests.cancelling import at_await, at_turn
from tests.health import descriptors, nothing_left, until
from tests.pipes.channel_ends import End
from tests.processes import process
from tests.roles import LOCAL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Cancel = Callable[[int, Callable[[], Any]], Awaitable[tuple[bool, Any]]]

pytestmark = pytest.mark.anyio

ECHO = "tests.channels.roles:echo_server"
#: One by one at first, then in growing steps: the turns that another process takes are not predictable.
TURNS = [*range(1, 30), *(int(30 * 1.4**k) for k in range(50))]


async def check(connected: channel.ConnectedChannel) -> None:
    end = End(connected.channel, keeps_views=False)
    await end.send(b"head", bytes(20_000))
    assert await end.received(1) == [b"head" + bytes(20_000)]


@pytest.mark.parametrize("cancel", [at_await, at_turn])
@pytest.mark.parametrize(("mode", "first"), [("rdma", True), ("rdma", False), ("tcp", False)])
async def test_connect(cancel: Cancel, mode: Any, first: bool) -> None:
    with process(ECHO) as server:
        port = await server.heard()
        async with nothing_left() as engine:
            async with await channel.connect(LOCAL, port, mode=mode) as connected:
                await check(connected)
            before = descriptors()
            completed = 0
            for n in TURNS:
                if first:
                    for group in list(engine.all_groups):
                        group.close()
                done, connected = await cancel(n, lambda: channel.connect(LOCAL, port, mode=mode))
                if done:
                    async with connected:
                        await check(connected)
                    completed += 1
                    if completed > 2:
                        break
            assert completed
            async with await channel.connect(LOCAL, port, mode=mode) as connected:
                await check(connected)
            await until(lambda: len(descriptors()) <= len(before), lambda: (before, descriptors()))


async def test_a_listener_that_closes_gives_up_what_nobody_accepted() -> None:
    async with nothing_left():
        listener = await channel.listen(LOCAL)
        a = await channel.connect(LOCAL, listener.port, mode="rdma")
        end = End(a.channel)
        a.channel.try_send(b"nobody", bytes(20_000))
        await until(lambda: listener.statistics().waiting == 1)
        with anyio.fail_after(20):
            await listener.aclose()
            await end.ended()
            await a.aclose()
