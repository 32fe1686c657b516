"""A process that finds no memory as it begins a READ or WRITE: it was begun and is counted, or it was not."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiordma import faults, memory
from aiordma.memory import by_link
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


class NoMemoryBehindThePost:
    """The transfers of a carrier; to have their ends noticed fails."""

    def __init__(self, transfers: Any) -> None:
        self._transfers = transfers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transfers, name)

    def soon(self) -> None:
        raise MemoryError


def no_memory(*_: object) -> None:
    raise MemoryError


#: By kind: begins an operation in the remote memory with a region of this end.
BEGINNINGS: dict[str, Callable[[Any, memory.Region], Any]] = {
    "write": lambda remote, ours: remote[:64].start_write(bytes(64)),
    "read": lambda remote, ours: remote[:64].start_read(bytearray(64)),
    "write of a region": lambda remote, ours: remote.start_write(ours),
    "read into a region": lambda remote, ours: remote.start_read(ours),
    "read by blocks": lambda remote, ours: remote.blocks(64, [3, 1]).start_read(bytearray(128)),
    "atomic": lambda remote, ours: remote.start_fetch_and_add(1),
}


@pytest.mark.parametrize("kind", BEGINNINGS)
async def test_nothing_is_posted_that_is_no_operation_s(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its memory would be given to others while the device uses it."""
    async with (
        pair("rdma") as (client, _),
        await memory.alloc(4096) as theirs,
        await memory.alloc(4096) as ours,
    ):
        remote = await client.open(theirs.descriptor(memory.Rights(7)))
        await remote[:64].read(bytearray(64))
        carrier: Any = client.carrier
        begun = None
        with faults.injected("delay op=any ms=50"):
            with monkeypatch.context() as scarce:
                scarce.setattr(by_link._Begun, "__init__", no_memory)
                scarce.setattr(carrier, "transfers", NoMemoryBehindThePost(carrier.transfers))
                with contextlib.suppress(MemoryError):
                    begun = BEGINNINGS[kind](remote, ours)
                assert carrier.under_way == (begun is not None and not begun.done)
            if begun is not None:
                await begun
        await BEGINNINGS[kind](remote, ours)
        assert carrier.under_way == remote._opened.users == ours._users == 0
        assert carrier.credit.available == carrier.credit.limit
