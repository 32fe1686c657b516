"""What a stream costs while it is idle, and what is left of it."""

from __future__ import annotations

import gc
import tracemalloc
import weakref

import anyio
import pytest

from aiordma import wake
from aiordma.streams.stream import RdmaStream
from tests.health import descriptors

from .pairs import MAKERS, on_memory, on_tcp

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
async def test_closed_streams_are_freed_at_once(maker) -> None:  # type: ignore[no-untyped-def]
    """No cycle keeps them until the garbage collector comes, even when they have waited."""
    one, other = await maker()
    with anyio.move_on_after(0):
        await one.receive()
    await other.send(b"x")
    await one.receive()
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


async def test_descriptors_and_watches_are_given_back() -> None:
    waker = wake.current()
    before = descriptors()
    for _ in range(20):
        one, other = on_tcp()
        with anyio.move_on_after(0):
            await one.receive()
        await one.aclose()
        await anyio.aclose_forcefully(other)
    assert descriptors() == before
    assert not getattr(waker, "_watched", None)
    assert not getattr(waker, "_watches", None)


async def test_an_idle_stream_is_small() -> None:
    """8 KiB beyond its rings is the limit for everything; the stream itself takes a fraction."""
    pipes = [on_memory(1) for _ in range(4)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        streams = [
            RdmaStream(pipe._pipe, local_address=("a", 1), remote_address=("b", 2))
            for pair in pipes
            for pipe in pair
            for _ in range(20)
        ]
        for stream in streams:
            with anyio.move_on_after(0):
                await stream.receive()
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    for stream in (*streams, *(each for pair in pipes for each in pair)):
        await stream.aclose()
    assert used / len(streams) < 1500
