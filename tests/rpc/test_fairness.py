"""Small calls beside bulk on the same link: answered in between, however much is under way.

Judged by the order in which calls end, not by time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from aiordma import rpc
from tests.processes import PATIENCE, process

from .roles import LOCAL

if TYPE_CHECKING:
    from aiordma.config import Mode

pytestmark = pytest.mark.anyio

BULK_CALLS = 1000
BULK_BYTES = 65536


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
async def test_small_calls_pass_a_thousand_large_ones(mode: Mode) -> None:
    """On a connection of their own: the messages of one connection arrive in the order they were sent."""
    done = 0
    ended: list[int] = []
    with process("tests.rpc.roles:server") as server:
        port = await server.heard()
        async with (
            rpc.connect(LOCAL, port, mode=mode) as bulk,
            rpc.connect(LOCAL, port, mode=mode) as small,
        ):
            payload = bytes(BULK_BYTES)

            async def transfer() -> None:
                nonlocal done
                await bulk.call("t.view", payload, returns=memoryview)
                done += 1

            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    for _ in range(BULK_CALLS):
                        tasks.start_soon(transfer)
                    await anyio.lowlevel.checkpoint()
                    while done < BULK_CALLS:
                        before = done
                        assert await small.call("t.echo", b"x" * 64) == b"x" * 64
                        ended.append(done - before)
    # Were they kept waiting for all that was there before them, the first would see all of it end. (One among
    # several may: a process can be kept off its CPU for as long as the whole bulk takes.)
    assert min(ended) <= BULK_CALLS * 4 // 5, ended
