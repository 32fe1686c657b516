"""Peers whose processes are stopped in the middle of a WRITE: memory that was taken back is the owner's."""

from __future__ import annotations

import random
import signal
from errno import EBUSY
from typing import TYPE_CHECKING

import anyio
import pytest

from aiordma import memory
from tests.health import until
from tests.processes import process
from tests.roles import LOCAL
from tests.virtual import in_virtual_time

from .pairs import pair

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiordma.links.link_memory import Registration

pytestmark = pytest.mark.anyio
WRITER = "tests.memory.roles:writer"
SIZE = 8 << 20
GRACE_S = 0.02
#: Of each way to take memory back.
ROUNDS = 4


async def revoke(region: memory.Region, peer: memory.Peer) -> None:
    await region.revoke(grace=GRACE_S)


async def expire(region: memory.Region, peer: memory.Peer) -> None:
    # What its timer does. A time short enough to wait for would be over before a slow peer opens it.
    (grant,) = region._grants
    region.registry.end(grant, memory.Fault.EXPIRED, GRACE_S)
    await until(lambda: not region._ending and not region._grants)


async def close_region(region: memory.Region, peer: memory.Peer) -> None:
    await region.aclose()


async def end_link(region: memory.Region, peer: memory.Peer) -> None:
    peer._channel.abort()
    peer._on_closed(ConnectionError("the test ends it"))
    await region.aclose()


async def taken_back(way: Callable[[memory.Region, memory.Peer], Awaitable[None]]) -> None:
    """A process that writes for as long as it may is stopped; its memory is taken back and used for something
    else; it goes on, and finds that it must not."""
    async with memory.serve(LOCAL) as server:
        with process(WRITER) as writer:
            for _ in range(ROUNDS):
                region = await memory.alloc(SIZE)
                view = region[:].view
                expires = 3600 if way is expire else None
                descriptor = region.descriptor(memory.Rights.WRITE, expires_in=expires)
                writer.say([server.port, descriptor.hex()])
                assert await writer.heard() == "rdma"
                (peer,) = server.peers
                await anyio.sleep(random.uniform(0.01, 0.02))
                writer.kill(signal.SIGSTOP)
                try:
                    with anyio.fail_after(30):
                        await way(region, peer)
                    view[:] = b"\xaa" * SIZE
                finally:
                    writer.kill(signal.SIGCONT)
                assert await writer.heard() in ("MemoryAccessError", "BrokenResourceError")
                assert bytes(view) == b"\xaa" * SIZE
                await region.aclose()
                await until(lambda: not server.peers)


@pytest.mark.parametrize("way", [revoke, expire, close_region, end_link])
async def test_a_stopped_peer_changes_nothing_afterwards(
    way: Callable[[memory.Region, memory.Peer], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory.region, "GRACE_S", GRACE_S)
    await taken_back(way)


class _Stopped:
    """An MR that a peer is in the middle of an access to, by its address."""

    def __init__(self, registration: Registration) -> None:
        self._registration, self._mr = registration, registration._mr
        self._error = registration._owner._engine.backend.binding.error
        self.inside = True
        registration._mr = self

    def close(self) -> None:
        if self.inside:
            error = self._error("ibv_dereg_mr", EBUSY)
            error.error_code = EBUSY  # type: ignore[attr-defined]
            raise error
        self._mr.close()


@in_virtual_time
@pytest.mark.parametrize("grace", [0, 0.05])
async def test_memory_is_not_given_back_before_the_peer_is_outside(grace: float) -> None:
    """Where the kernel copies to the owner's address, nothing can be taken from under the peer."""
    async with pair("rdma") as (client, server), memory.register(bytearray(4096)) as region:
        await client.open(region.descriptor())
        (opening,) = server._owner._openings.values()
        assert opening.registration is not None
        stopped = _Stopped(opening.registration)
        ended = False

        async def revoke() -> None:
            nonlocal ended
            await region.revoke(grace=grace)
            ended = True

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(revoke)
            await anyio.sleep(1)
            assert not ended
            region.close()
            assert not region.closed
            stopped.inside = False
            with anyio.fail_after(10):
                await region.aclose()
        assert ended


@in_virtual_time
async def test_a_link_that_ends_does_not_give_memory_back_before_the_peer_is_outside() -> None:
    async with pair("rdma") as (client, server), memory.register(bytearray(4096)) as region:
        await client.open(region.descriptor())
        (opening,) = server._owner._openings.values()
        assert opening.registration is not None
        stopped = _Stopped(opening.registration)
        server._channel.abort()
        server._on_closed(ConnectionError("the test ends it"))
        region.close()
        await anyio.sleep(1)
        assert not region.closed
        stopped.inside = False
        with anyio.fail_after(10):
            await region.aclose()
