"""A process whose cgroup has no memory for its rings dies alone: its peers learn it, others lose nothing.

Memfds count for the cgroup of who touches a page first: that of a ring at the peer may be this end's.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import anyio
import pytest

import aiordma
from aiordma import Config
from tests.cgroup import little_memory
from tests.health import nothing_left, until
from tests.processes import process
from tests.roles import LOCAL, pumping_clients
from tests.world import DEVICE

from .test_killed import ECHO, PUMP, Traffic

if TYPE_CHECKING:
    from tests.program import Control

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(DEVICE != "soft", reason="rings of the kernel's devices are not shared"),
]

MIB = 1 << 20
#: Together more than the cgroup has, and each less: as they are at first, since a ring that few bytes are in
#: becomes smaller, and one that grows may lie in huge pages, which its owner makes.
STREAMS, RING_BYTES, LIMIT = 48, MIB, 24 * MIB


async def later(control: Control, port: int) -> None:
    """Sends as soon as it hears something."""
    await control.hear()
    await pumping_clients(control, port, streams=STREAMS)


async def test_a_server(anyio_backend: object) -> None:
    """It answers more than it has memory for."""
    config = Config(ring_bytes=RING_BYTES, max_ring_bytes=RING_BYTES)
    with process(ECHO) as bystander, little_memory() as cgroup:
        port = await bystander.heard()
        async with nothing_left() as engine, anyio.create_task_group() as tasks:
            other = Traffic(tasks, await aiordma.connect(LOCAL, port, mode="rdma"), 5_000)
            with process(ECHO, ring_bytes=RING_BYTES, max_ring_bytes=RING_BYTES) as victim:
                victims_port = await victim.heard()
                streams = [await aiordma.connect(LOCAL, victims_port, config=config) for _ in range(STREAMS)]
                cgroup.limit(LIMIT)
                cgroup.take(victim.pid)
                victim.expect(-signal.SIGKILL)
                killed = [Traffic(tasks, stream, 70_000) for stream in streams]
                await until(lambda: cgroup.killed() == 1, engine.statistics)
                for traffic in killed:
                    await traffic.breaks()
            await other.flowed(100_000)
            await until(lambda: len(engine.all_groups) == 1, engine.statistics)
            await other.stop()


async def test_a_client(anyio_backend: object) -> None:
    """It fills the server's rings, whose pages count for it."""
    ends: list[BaseException | str | None] = []

    async def serve(stream: aiordma.RdmaStream) -> None:
        async with stream:
            try:
                async for part in stream:
                    await stream.send(part)
                ends.append("the end in order")
            except anyio.BrokenResourceError as error:
                ends.append(error.__cause__)

    config = Config(ring_bytes=RING_BYTES, max_ring_bytes=RING_BYTES)
    with little_memory() as cgroup:
        async with nothing_left() as engine, await aiordma.listen(LOCAL, config=config) as listener:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(listener.serve, serve)
                with process(PUMP, port=listener.port) as bystander:
                    assert await bystander.heard() == "rdma"
                    with process("tests.system.adversity.test_cgroup:later", port=listener.port) as victim:
                        cgroup.limit(LIMIT)
                        cgroup.take(victim.pid)
                        victim.expect(-signal.SIGKILL)
                        victim.say("go")
                        await until(lambda: cgroup.killed() == 1, engine.statistics)
                        await until(lambda: len(engine.all_groups) == 1, engine.statistics)
                    assert all(ends)
                    goal = 300_000
                    while goal > 0:
                        goal -= await bystander.heard()
                    bystander.kill()
                await until(lambda: not engine.all_groups, engine.statistics)
                tasks.cancel_scope.cancel()
