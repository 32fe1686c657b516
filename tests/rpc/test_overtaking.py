"""Small calls beside many large ones on the same connection: they wait their turn, not for the end.

What is counted is how many large replies overtake a small call; how long that takes depends on the machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiordma import rpc
from aiordma.config import Config
from tests.world import DEVICE

from .services import service

if TYPE_CHECKING:
    from aiordma.config import Mode

pytestmark = pytest.mark.anyio

CONFIG = Config(device=DEVICE)
LARGE = 1000
SIZE = 128 * 1024


@pytest.mark.parametrize("path", ["rdma", "tcp"])
async def test_a_small_call_passes_a_thousand_large_ones(path: Mode) -> None:
    made, seen = service()
    done = 0
    overtaken: list[int] = []
    async with (
        rpc.serve(made, "127.0.0.1", config=CONFIG, calls=2000) as server,
        rpc.connect("127.0.0.1", server.port, config=CONFIG, mode=path) as client,
    ):

        async def large() -> None:
            nonlocal done
            assert len(await client.call("t.big_late", SIZE)) == SIZE
            done += 1

        async def small() -> None:
            while done < LARGE:
                before = done
                assert await client.call("t.echo", b"x" * 64) == b"x" * 64
                overtaken.append(done - before)

        async with anyio.create_task_group() as tasks:
            for _ in range(LARGE):
                tasks.start_soon(large)
            while seen.running < LARGE:
                await checkpoint()
            seen.go.set()
            tasks.start_soon(small)
    # As many as the channel has under way at a time: 4 MiB, and what TCP's buffers hold.
    assert max(overtaken) < LARGE // 4
    assert len(overtaken) > 4
