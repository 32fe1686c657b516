"""Link groups as with a kernel's SMC-R, both ends of them here."""

from __future__ import annotations

import random
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

import aiordma
from aiordma import faults
from aiordma.config import Config
from aiordma.errors import VerbsError
from aiordma.links import engine as links_engine
from aiordma.links.smcr.group import KernelGroup
from aiordma.links.smcr.rings import RingPlaces
from aiordma.proto.clc import Proposal
from tests.health import until
from tests.kernel_option import options
from tests.processes import PATIENCE
from tests.refusing import no_receives
from tests.tuned import tuned
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiordma.streams.listener import RdmaListener
    from aiordma.streams.stream import RdmaStream
    from aiordma.verbs.memory.arena import Block

__all__ = ["options"]

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("options")]

CONFIG = Config(device=DEVICE, ring_bytes=65536)


@asynccontextmanager
async def pairs(count: int, config: Config = CONFIG) -> AsyncIterator[list[tuple[RdmaStream, RdmaStream]]]:
    """Streams of a client, each with the server's end."""
    async with aiordma.listen("127.0.0.1", 0, config=config) as listener:
        made = [await pair(listener, config) for _ in range(count)]
        yield made
        for ends in made:
            for end in ends:
                end.abort()


async def pair(listener: RdmaListener, config: Config) -> tuple[RdmaStream, RdmaStream]:
    client = await aiordma.connect("127.0.0.1", listener.port, config=config)
    server = await listener.accept()
    assert client.smc_peer is not None
    assert server.smc_peer is not None
    return client, server


def groups() -> list[KernelGroup]:
    engine = links_engine.running()
    assert engine is not None
    return [group for group in engine.all_groups if isinstance(group, KernelGroup)]


async def test_every_byte_arrives_on_every_loop() -> None:
    data = random.Random(2).randbytes(500_000)
    async with pairs(3) as made:
        assert sorted(group.key.side for group in groups()) == ["client", "server"]

        async def send(stream: RdmaStream) -> None:
            await stream.send(data)
            await stream.send_eof()

        async with anyio.create_task_group() as tasks:
            for client, server in made:
                for end in client, server:
                    tasks.start_soon(send, end)
                for end in client, server:
                    tasks.start_soon(check, end, data)


async def check(stream: RdmaStream, data: bytes) -> None:
    assert await stream.receive_exactly(len(data)) == data
    with pytest.raises(anyio.EndOfStream):
        await stream.receive()


async def test_a_slow_reader_holds_the_writer_up() -> None:
    async with pairs(1) as [(client, server)]:
        assert client.send_nowait(bytes(1_000_000)) == 65536
        with pytest.raises(anyio.WouldBlock):
            client.send_nowait(b"more")
        assert await server.receive_exactly(65536) == bytes(65536)
        await client.send(b"more")
        client.abort()
        with pytest.raises(anyio.BrokenResourceError):
            await server.receive_exactly(1_000_000)


async def test_an_unused_group_ends_at_both_ends() -> None:
    config = tuned(device=DEVICE, ring_bytes=65536, link_idle_ms=1, keepalive_ms=100)
    async with pairs(1, config) as [(client, server)]:
        assert len(groups()) == 2
        await client.aclose()
        await server.aclose()
        await until(lambda: groups() == [])
    async with pairs(1, config):
        assert len(groups()) == 2


async def test_a_silent_link_is_asked_and_lives() -> None:
    config = tuned(device=DEVICE, ring_bytes=65536, keepalive_ms=50, keepalive_timeout_ms=60_000)
    async with pairs(1, config) as [(client, server)]:
        before = [group.link.queue_pair.messages_received for group in groups()]
        await until(
            lambda: all(
                group.link.queue_pair.messages_received > count
                for group, count in zip(groups(), before, strict=True)
            )
        )
        await client.send(b"still here")
        assert await server.receive() == b"still here"


async def test_a_lost_link_is_the_end_of_its_streams() -> None:
    async with pairs(2) as made:
        (group,) = [each for each in groups() if each.key.side == "server"]
        group.link.cut()
        group.link.queue_pair.break_link(ConnectionResetError("a test"))
        for _, server in made:
            with pytest.raises(anyio.BrokenResourceError):
                await server.receive()


async def test_a_stream_whose_end_is_late_is_lost_once() -> None:
    """Its group is whole, and others join it."""
    config = tuned(device=DEVICE, ring_bytes=65536, keepalive_timeout_ms=60_000)
    engine = await links_engine.current(config)
    async with aiordma.listen("127.0.0.1", 0, config=config) as listener:
        client, server = await pair(listener, config)
        async with server:
            (group,) = [each for each in groups() if each.key.side == "client"]
            (other,) = [each for each in groups() if each.key.side == "server"]
            member: Any = next(iter(group.members))
            (peer,) = other.members
            with faults.injected("delay op=cdc side=client dir=out ms=86400000"):
                client.abort()
                peer._drop_tcp()
                await until(lambda: member._tcp_is_half)
                now = engine.waker.now()
                for tick in range(20):
                    member.look(now + tick * config.link_timeout_ms / 1000)
                assert not member.pipe.is_finished
                assert group.places.lost == 1


async def test_a_link_that_gets_no_receive_fails() -> None:
    """Its peer does not write on into a ring that nobody looks at."""
    config = tuned(device=DEVICE, ring_bytes=65536, keepalive_ms=50, keepalive_timeout_ms=60_000)
    async with pairs(1, config) as [(client, server)]:
        (link,) = [each.link for each in groups() if each.key.side == "server"]
        with no_receives(link.parts.qp.pointer, last=1) as refusals, anyio.fail_after(PATIENCE):
            await client.send(b"x")
            await until(lambda: refusals.refused)
            assert link.queue_pair.failed
            assert isinstance(link.failure, VerbsError)
            assert await server.receive() == b"x"
            for end in client, server:
                with pytest.raises(anyio.BrokenResourceError):
                    await end.receive()


class Memory:
    """An arena that counts."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.back = 0

    def allocate(self, length: int) -> Block:
        self.given.append(length)
        return _Block(sum(self.given[:-1]) + (1 << 20), self)  # type: ignore[return-value]


class _Block:
    def __init__(self, address: int, memory: Memory) -> None:
        self.address, self.rkey, self._memory = address, len(memory.given), memory

    def free(self) -> None:
        self._memory.back += 1


async def test_a_group_names_few_pieces_of_memory() -> None:
    """Linux keeps 255 pairs of key and address for a group that may live for months."""
    memory = Memory()
    places = RingPlaces(memory, 16384, 256)  # type: ignore[arg-type]
    taken = [places.take() for _ in range(255)]
    assert memory.given == [16384 * count for count in (1, 1, 2, 4, 8, 16, 32, 64, 128)]
    assert len({place.address for place in taken}) == 255
    assert all(1 <= place.index <= 128 for place in taken)
    lost = taken.pop()
    lost.lose()
    lost.free()
    lost.lose()
    assert places.lost == 1
    for _ in range(3):
        for place in taken:
            place.free()
            place.free()
        taken = [places.take() for _ in range(255)]
        assert lost.address not in {place.address for place in taken}
    assert len(memory.given) == 9
    places.close()
    assert memory.back == 9


async def connect_to(port: int) -> None:
    await aiordma.connect("127.0.0.1", port, config=CONFIG)


async def test_a_stranger_that_stalls_keeps_no_group() -> None:
    """Only this end has others join, or the server that it asks."""
    engine = await links_engine.current(CONFIG)
    async with aiordma.listen("127.0.0.1", 0, config=CONFIG) as listener:
        made = await pair(listener, CONFIG)
        for end in made:
            await end.aclose()
        await until(lambda: not any(group.members for group in groups()))
        with socket.create_connection(
            ("127.0.0.1", listener.port), source_address=("127.0.0.9", 0)
        ) as stranger:
            stranger.send(Proposal().encode()[:20])
            await until(lambda: listener.statistics().negotiating == 1)
            now = engine.waker.now() + 61
            with socket.create_server(("127.0.0.1", 0)) as silent:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(connect_to, silent.getsockname()[1])
                    with (await anyio.to_thread.run_sync(silent.accept))[0] as asked:
                        assert await anyio.to_thread.run_sync(asked.recv, 8)
                        engine.retire_idle(now)
                        assert [group.key.side for group in groups() if group.retired] == ["server"]
                        tasks.cancel_scope.cancel()
            engine.retire_idle(now)
            assert all(group.retired for group in groups())
            engine.retire_idle(now + 3)
            assert groups() == []
