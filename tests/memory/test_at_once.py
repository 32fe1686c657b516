"""WRITEs that need no completion, and those that turn out to need one."""

from __future__ import annotations

import pytest

from aiordma import memory
from aiordma.memory.peer import CREDIT
from tests.processes import process
from tests.world import DEVICE, LATE

from .pairs import pair
from .test_pieces import completions

pytestmark = pytest.mark.anyio
OWNER = "tests.memory.roles:owner"


@pytest.mark.skipif(
    LATE, reason="only the software device says what it has carried out when it was posted to"
)
async def test_short_writes_have_few_completions() -> None:
    async with (
        pair("rdma") as (client, _),
        await memory.alloc(4096) as region,
        await memory.alloc(4096) as ours,
    ):
        remote = await client.open(region.descriptor())
        await remote.write(ours)  # the device learns where the memory is
        before = completions()
        for _ in range(500):
            await remote[:64].write(b"w" * 64)
            await remote[64:128].write(ours[:64])
        assert completions() - before < 100
        assert region[:64].view == b"w" * 64
        assert client.credit.available == CREDIT


async def test_longer_than_the_send_queue_is_deep() -> None:
    """What completes now and then gives the places in the send queue back."""
    async with pair("rdma") as (client, _), await memory.alloc(8, "int64") as region:
        remote = await client.open(region.descriptor())
        for number in range(5000):
            await remote[8:16].write(number.to_bytes(8, "little"))
        assert memoryview(region)[1] == 4999


@pytest.mark.skipif(DEVICE != "soft", reason="other devices use the wire always")
async def test_over_the_wire() -> None:
    """There nothing is carried out when it is posted."""
    wire = {"SOFTDEV_WIRE": "only"}
    with process(OWNER, env=wire, nbytes=1 << 20, device="soft") as owner:
        with process("tests.memory.roles:visitor", env=wire, device="soft") as visitor:
            visitor.say(await owner.heard())
            assert await visitor.heard() == "rdma"
            assert await visitor.heard() == "all as written"
        owner.hush()
        assert await owner.heard() == "closed"
