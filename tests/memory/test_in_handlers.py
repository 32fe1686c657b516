"""Handlers of calls that use memory of others at once: nothing that was posted amid a batch is forgotten."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from aiordma import memory, rpc
from tests.processes import PATIENCE
from tests.roles import LOCAL

from .pairs import config_of, pair

pytestmark = pytest.mark.anyio
CALLS = 100


@pytest.mark.parametrize("busy_poll_us", [0, None], ids=["events only", "adaptive"])
@pytest.mark.parametrize("operation", ["read", "write", "fetch and add"])
async def test_the_first_step_of_a_handler(operation: str, busy_poll_us: int | None) -> None:
    """It runs within the batch that has brought the call, and the software device carries out at once what it
    posts: that completion comes behind the batch, and before the handler waits."""
    # Without a keepalive no other completion comes that would end the wait.
    config = replace(config_of("rdma"), keepalive_ms=0, busy_poll_us=busy_poll_us)
    service = rpc.Service("m")
    async with pair("rdma", config) as (client, _), await memory.alloc(4096, "uint8") as region:
        remote = await client.open(region.descriptor(memory.Rights(7)))
        data = bytearray(64)

        @service.method
        async def work(number: int) -> int:
            if operation == "read":
                await remote[:64].read(data)
            elif operation == "write":
                await remote[:64].write(bytes([number]) * 64)
            else:
                await remote.fetch_and_add(1)
            return number

        async with (
            rpc.serve(service, LOCAL, config=config) as server,
            rpc.connect(LOCAL, server.port, config=config, mode="rdma") as caller,
        ):
            with anyio.fail_after(PATIENCE):
                for number in range(CALLS):
                    assert await caller.call("m.work", number) == number
