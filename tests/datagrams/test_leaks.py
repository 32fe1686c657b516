"""Closed datagram connections and endpoints leave nothing behind, at either end."""

from __future__ import annotations

import contextlib
import gc
import weakref
from pathlib import Path

import anyio
import pytest

import aiordma
from tests.processes import process

from .pairs import LOCAL, MAKERS

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
async def test_closed_connections_are_freed_at_once(maker) -> None:  # type: ignore[no-untyped-def]
    """No reference cycle keeps them until garbage collection, even after they have waited."""
    one, other = await maker()
    with anyio.move_on_after(0):
        await one.receive()
    with contextlib.suppress(anyio.WouldBlock):
        while True:
            one.send_nowait(b"x" * 1000)
    with contextlib.suppress(anyio.WouldBlock):
        while True:
            other.receive_nowait()
    gone = [weakref.ref(one), weakref.ref(other)]
    await one.aclose()
    await other.aclose()
    await anyio.wait_all_tasks_blocked()
    gc.disable()
    try:
        del one, other
        assert [ref() for ref in gone] == [None, None]
    finally:
        gc.enable()


async def test_endpoints_of_a_peer_that_were_closed() -> None:
    """The memory through which they were sent to is released, as long as their process lives, too."""

    def lanes() -> int:
        return Path("/proc/self/maps").read_text(encoding="utf-8").count("softdev-ud")

    async with await aiordma.open_datagram_endpoint((LOCAL, 0)) as one, anyio.create_task_group() as tasks:

        async def echo() -> None:
            async for item in one:
                await one.send(item)

        tasks.start_soon(echo)
        before = lanes()
        port = one.local_address[1]
        with process("tests.datagrams.roles:endpoints_in_turn", port=port, count=20) as peer:
            assert await peer.heard() == "done"
            # Of the peer's process to this endpoint, to its last endpoint, and to the one before.
            assert lanes() - before <= 3
        tasks.cancel_scope.cancel()
