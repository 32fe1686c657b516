"""Hundreds of clients of calls, used and left in every way; then everything counts as much as before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from aiordma import rpc
from tests.health import ROUNDS
from tests.loops import LOOPS
from tests.processes import process
from tests.roles import LOCAL

from .test_churn import Count, check_churn

if TYPE_CHECKING:
    from aiordma.links.engine import Engine
    from tests.program import Control

pytestmark = pytest.mark.slow

HERE = "tests.system.leaks.test_rpc"


async def one_of_each(port: int, number: int) -> None:
    """A client, one way of using it, and one way of leaving it."""
    retry = rpc.Retry()
    async with rpc.connect_pool([(LOCAL, port)], interceptors=[retry], mode="rdma") as pool:
        way = number % 6
        if way == 0:
            assert await pool.call("t.add", 1, 2, returns=int) == 3
        elif way == 1:
            view = await pool.call("t.view", bytes(100_000), returns=memoryview)
            assert len(view) == 100_000
        elif way == 2:
            with pytest.raises(rpc.RpcError):
                await pool.call("t.fail", "other")
        elif way == 3:
            async with pool.stream("t.count_async", 1_000_000, returns=int) as items:
                async for item in items:
                    if item == 10:
                        break
        elif way == 4:
            with anyio.move_on_after(0.001):
                await pool.call("t.wait")
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(pool.call, "t.wait")  # ends with the client
                await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()


def count(engine: Engine) -> Count:
    counted = Count(engine)
    # asyncio keeps a hundred timers that were cancelled, and more while they are the smaller half.
    for kind in ("TimerHandle", "Context"):
        counted.objects.pop(kind, None)
    return counted


async def churn(control: Control, port: int, times: int) -> None:
    await check_churn(lambda number: one_of_each(port, number), times, at_once=4, count=count)
    control.say("done")


@pytest.mark.parametrize("loop", LOOPS)
def test_clients_and_pools(loop: str) -> None:
    with process("tests.rpc.roles:server", loop=loop) as server:
        port = server.hear()
        with process(f"{HERE}:churn", loop=loop, port=port, times=300 * ROUNDS) as client:
            assert client.hear() == "done"
        while True:
            server.say("how many")
            if server.hear() == 0:
                break
