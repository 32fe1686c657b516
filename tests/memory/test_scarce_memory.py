"""A process that finds no memory as it begins a READ or WRITE: it was begun and is counted, or it was not."""

from __future__ import annotations

from collections import deque
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiordma import memory
from aiordma.memory.by_link import LinkCarrier
from aiordma.pipes._one_sided import READ, WRITE
from aiordma.verbs._spans import Spans
from tests.processes import PATIENCE

from .pairs import pair

pytestmark = pytest.mark.anyio

#: More than a block of a deque has places, so that a new one is needed in between.
TRANSFERS = 150


def begin_without_memory(begin: Any, number: int) -> Any:
    """What is begun while that allocation fails which has this number; None: its user is told so."""
    interpreter: Any = pytest.importorskip("_testcapi", reason="this Python comes without its own tests")
    interpreter.set_nomemory(number, number + 1)
    try:
        return begin()
    except MemoryError:
        return None
    finally:
        interpreter.remove_mem_hooks()


@pytest.mark.parametrize("op", [WRITE, READ], ids=["write", "read"])
@pytest.mark.parametrize("number", range(9))
async def test_what_was_begun_ends_and_nothing_else_is_left(op: int, number: int) -> None:
    async with (
        pair("rdma") as (client, _),
        await memory.alloc(4096) as theirs,
        await memory.alloc(4096) as ours,
    ):
        remote = await client.open(theirs.descriptor())
        await remote.read(ours)
        carrier: Any = client.carrier
        assert isinstance(carrier, LinkCarrier)
        local, places = Spans.one(ours.address, 64), Spans.one(0, 64)
        opened = remote._opened
        lkey = ours.lkey(carrier.memory)
        options: dict[str, Any] = {"lkey": lkey, "base": opened.address, "rkey": opened.rkey}
        used_up = deque(range(64 * 100))  # else blocks of deques that are gone are used again
        begun = [
            begin_without_memory(lambda: carrier.transfers.pieces(op, local, places, **options), number)
            for _ in range(TRANSFERS)
        ]
        assert used_up.pop()
        for transfer in begun:
            with anyio.fail_after(PATIENCE):
                while transfer is not None and not transfer.done:
                    carrier.transfers.spin(transfer)
                    await checkpoint()
        errors = [transfer.error for transfer in begun if transfer is not None and transfer.error is not None]
        assert carrier.transfers.under_way == 0
        assert all("this end has no memory for" in str(error) for error in errors)
        if not errors:  # else what was posted could not be counted
            await remote.write(b"w" * 4096)
            assert theirs[:].view == b"w" * 4096
