"""A loop ends with open streams just after its server has died: everything is released, each time.

It was not always: descriptors, a thread and a protection domain with memory in it stayed.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

import aiordma
from tests.health import ROUNDS, descriptors
from tests.loops import LOOPS
from tests.processes import FULL_PATIENCE, process
from tests.roles import LOCAL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.processes import Process

    Role = Callable[[Process, int, list[object]], Awaitable[None]]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(4 * FULL_PATIENCE),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of streams that are open on purpose
]

TIMES = 3


async def opened(port: int) -> list[aiordma.RdmaStream]:
    """Three streams that have carried something."""
    streams = [await aiordma.connect(LOCAL, port, mode="rdma") for _ in range(3)]
    for stream in streams:
        await stream.send(b"x" * 5000)
        got = 0
        while got < 5000:
            got += len(await stream.receive())
    return streams


async def receive(stream: aiordma.RdmaStream) -> None:
    """As much as comes."""
    try:
        async for _ in stream:
            pass
    except anyio.BrokenResourceError:
        pass


async def send(stream: aiordma.RdmaStream) -> None:
    """As much as goes."""
    try:
        while True:
            await stream.send(bytes(random.choice((1, 5_000, 300_000))))
    except anyio.BrokenResourceError:
        pass


async def idle(victim: Process, port: int, kept: list[object]) -> None:
    """The loop ends before it has heard of the death."""
    kept.append(await opened(port))
    victim.kill()


async def full(victim: Process, port: int, kept: list[object]) -> None:
    """The server waits for room, and there is none for this end either."""
    streams = await opened(port)
    kept.append(streams)
    for stream in streams:
        with contextlib.suppress(anyio.WouldBlock):
            while True:
                stream.send_nowait(bytes(300_000))
    victim.kill()


async def busy(victim: Process, port: int, kept: list[object]) -> None:
    """Both ends are in the midst of it."""
    streams = await opened(port)
    kept.append(streams)
    async with anyio.create_task_group() as tasks:
        for stream in streams:
            tasks.start_soon(receive, stream)
            tasks.start_soon(send, stream)
        for _ in range(random.randrange(200)):
            await anyio.lowlevel.checkpoint()
        victim.kill()
        tasks.cancel_scope.cancel()


async def learning(victim: Process, port: int, kept: list[object]) -> None:
    """One stream knows, and a moment later the loop ends."""
    streams = await opened(port)
    kept.append(streams)
    victim.kill()
    await receive(streams[0])


def threads() -> int:
    """Those that are not Python's, such as the device's."""
    return len(os.listdir("/proc/self/task")) - threading.active_count()


def until_at_most(most: int, count: Callable[[], int]) -> int:
    """What is counted, after a while if it is more: the device's threads look into /proc, and end late."""
    deadline = time.monotonic() + FULL_PATIENCE
    while (found := count()) > most:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("how", [idle, full, busy, learning])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_that_ends(loop: str, how: Role, caplog: pytest.LogCaptureFixture) -> None:
    backend, options = LOOPS[loop]
    before, first = threads(), list[str]()
    for number in range(1 + TIMES * ROUNDS):
        kept: list[object] = []
        with process("tests.roles:echo_server") as victim:
            anyio.run(how, victim, victim.hear(), kept, backend=backend, backend_options=options)
            if number % 2:
                kept.clear()  # by now or later, it is the same
            gc.collect()
            kept.clear()
            gc.collect()
        assert until_at_most(before, threads) <= before
        first = first or descriptors()
        found = until_at_most(len(first), lambda: len(descriptors()))
        assert found <= len(first), (number, Counter(descriptors()) - Counter(first))
    assert "released completely" not in caplog.text
