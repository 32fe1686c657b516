"""The path of devices that take only short messages inline: WRITEs from registered memory, limited in number.

The software device is asked for no more inline data than a network card grants.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import anyio
import pytest

from .link_pairs import connect
from .test_ring import receive, send

if TYPE_CHECKING:
    from .link_pairs import Open

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("inline", [0, 64, 220])
async def test_bytes_are_right(open_engine: Open, inline: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(inline)
    data = rng.randbytes(700_000)
    async with open_engine(ring_bytes=16384, fragment_bytes=4096, max_outstanding_wrs=3) as engine:
        # 0 would mean "not known yet". The limits are the device's, known to all engines of the process.
        monkeypatch.setattr(engine.backend.limits, "max_inline_bytes", inline or 1)
        a, b = await connect(engine)
        # Where a scatter list would stand, there is room for 16 bytes at least.
        assert next(iter(engine.groups.values())).link.queue_pair.max_inline <= max(inline, 16)
        sizes = iter(lambda: rng.randrange(1, 9000), 0)

        async def feed() -> None:
            at = 0
            while at < len(data):
                piece = data[at : at + next(sizes)]
                await send(a, piece)
                at += len(piece)

        async with anyio.create_task_group() as group:
            group.start_soon(feed)
            assert await receive(b, len(data)) == data


async def test_limit_is_shared_by_connections_in_turn(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One fragment at a time for the whole engine: every connection still gets its share."""
    data = random.Random(5).randbytes(200_000)
    async with open_engine(ring_bytes=65536, fragment_bytes=8192, max_outstanding_wrs=1) as engine:
        monkeypatch.setattr(engine.backend.limits, "max_inline_bytes", 64)
        pairs = [await connect(engine) for _ in range(8)]
        done: list[int] = []

        async def take(number: int) -> None:
            assert await receive(pairs[number][1], len(data)) == data
            done.append(number)

        with anyio.fail_after(15):
            async with anyio.create_task_group() as group:
                for number, (a, _) in enumerate(pairs):
                    group.start_soon(take, number)
                    group.start_soon(send, a, data)
        assert sorted(done) == list(range(8))
