"""A closed datagram connection leaves nothing behind."""

from __future__ import annotations

import contextlib
import gc
import weakref

import anyio
import pytest

from .pairs import MAKERS

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
