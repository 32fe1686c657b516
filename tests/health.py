"""Checks of an engine after connections have ended: it works, and has released everything."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiordma import wake
from aiordma.links import engine as engines
from aiordma.wake.beside import wait_for_threads
from tests.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from weakref import ref

    import aiordma

#: Rounds of tests that inject faults at random moments; more rounds find more, and take longer.
ROUNDS = int(os.environ.get("AIORDMA_TEST_ROUNDS", "1"))
#: Where the processes of a network namespace meet that share the port of the software device's wire.
_WIRE_NAME, _WIRE_PORT = b"\0aiordma-wire.", 4791


async def until(holds: Callable[[], object], describe: Callable[[], object] = lambda: "") -> None:
    """Wait for something the engine or the kernel does by itself, without an event: at first without giving
    away the processor."""
    try:
        with anyio.fail_after(PATIENCE):
            for _ in range(30):
                if holds():
                    return
                await checkpoint()
            while not holds():  # noqa: ASYNC110
                await anyio.sleep(0.001)
    except TimeoutError:
        raise AssertionError(f"it never came true: {describe()}") from None


async def settle(turns: int = 30) -> None:
    """Let every task that can run do so: one that is cancelled or woken needs a few turns of the loop."""
    for _ in range(turns):
        await checkpoint()


async def endpoint_begun() -> None:
    """Until the loop has its admin endpoint, which begins a moment after its first connection, and until the
    thread has swept, whose descriptors tests would count."""
    await until(lambda: hasattr(wake.current().locals["aiordma.admin.endpoint"], "value"))
    wait_for_threads()


def collected(reference: ref[Any], collect: Callable[[], object] = gc.collect) -> bool:
    """Whether an object that nothing needs any more goes, perhaps at a second collection: a thread that hands
    a result over, such as one of a loop's executor, holds what it is for until it has, and a collection that
    begins while another thread is in one does nothing.
    """
    for _ in range(1000):
        collect()
        if reference() is None:
            return True
        os.sched_yield()
    return False


def _is_of_the_wire(number: int) -> bool:
    """Whether a socket comes and goes with other processes: when the one ends that has the wire's port, any
    of the others takes it over, and listens for the rest, who are connected to it."""
    with socket.socket(fileno=os.dup(number)) as sock:
        if sock.family != socket.AF_UNIX:
            return bool(sock.type == socket.SOCK_DGRAM and sock.getsockname()[1] == _WIRE_PORT)
        names = [sock.getsockname()]
        with contextlib.suppress(OSError):
            names.append(sock.getpeername())
        return any(isinstance(name, bytes) and name.startswith(_WIRE_NAME) for name in names)


def descriptors() -> list[str]:
    """What this process has open, without what garbage and threads that are ending still have."""
    wait_for_threads()
    gc.collect()
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
            if not (target.startswith("socket:") and _is_of_the_wire(int(name))):
                found.append(target)
        except OSError:
            continue  # the directory itself
    return sorted(found)


async def check_echo(stream: aiordma.RdmaStream, data: bytes = bytes(range(256)) * 1000) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream.send, data)
        got = b""
        while len(got) < len(data):
            got += await stream.receive()
    assert got == data


async def check_end(stream: aiordma.RdmaStream) -> None:
    await stream.send_eof()
    with pytest.raises(anyio.EndOfStream):
        await stream.receive()


@asynccontextmanager
async def nothing_left() -> AsyncIterator[engines.Engine]:
    """Around connections that all end inside: rings, links and tokens are released."""
    engine = await engines.current()
    await endpoint_begun()
    yield engine

    def left() -> dict[str, Any]:
        return {
            "groups": [(g.key[1], g.peer, g.link.state, len(g.members)) for g in engine.all_groups],
            "pipes": [
                (m.pipe.is_closed, m.pipe.peer_gone, m.pipe.error, m.carrier, m.pipe.statistics())
                for g in engine.all_groups
                for m in g.members
            ],
            "statistics": engine.statistics(),
        }

    await until(lambda: not any(group.members for group in engine.all_groups), left)
    for group in engine.all_groups:
        assert group.active, left()
        out = len(group.pregranted) if group.key[1] == "server" else 0
        assert group.link.queue_pair.flow_count == out, left()
        assert group.rings.used_bytes == group.pregranted.ring_bytes, left()
    parts = [group.link.parts for group in engine.all_groups] + engine.cache.parked
    used = engine.pool.statistics().used_bytes - sum(g.pregranted.held_bytes for g in engine.all_groups)
    assert used == sum(part.pool_bytes for part in parts), left()
