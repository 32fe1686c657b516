"""A limit of registered memory that is reached while connections are made."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
import pytest

from aiordma.errors import Code, NegotiationError
from aiordma.pipes._ring import RingPipe
from aiordma.proto import clc
from aiordma.verbs.memory.budget import MemoryLimitError
from aiordma.verbs.registrar import DeviceRegistrar
from tests.health import until
from tests.pipes.link_pairs import connect, open_engine
from tests.tuned import tuned
from tests.virtual import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiordma.links.engine import Engine
    from aiordma.verbs.memory.arena import Arena, Block

pytestmark = pytest.mark.anyio

RING = 256 << 10


def taken(arena: Arena) -> list[Block]:
    """All that can be had."""
    blocks = []
    while True:
        try:
            blocks.append(arena.allocate(RING, minimum=4096))
        except MemoryLimitError:
            return blocks


@contextmanager
def left(engine: Engine, length: int) -> Iterator[None]:
    """Use up the memory except for ``length`` bytes or a little more."""
    group = next(iter(engine.all_groups))
    arena = engine.pool.arena(
        DeviceRegistrar(engine.backend, group.link.parts.pd, remote=False), first_slab_bytes=4096
    )
    blocks = taken(arena)
    free = 0
    while free < length:
        free += blocks[-1].length
        blocks.pop().free()
    try:
        yield
    finally:
        for block in blocks:
            block.free()
        arena.close()


async def test_the_copy_of_the_peers_ring_is_reserved_before_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Devices that take little inline need it. On a link that exists, a client goes on with its Confirm."""
    async with open_engine(memory_limit_bytes=8 << 20, ring_bytes=RING, slab_bytes=RING) as engine:
        monkeypatch.setattr(engine.backend.limits, "max_inline_bytes", 64)
        await connect(engine)
        client = await engine.propose()
        proposal = clc.decode(client.proposal.encode())
        assert isinstance(proposal, clc.Proposal)
        used = engine.pool.used_bytes
        with left(engine, RING), pytest.raises(NegotiationError) as caught:
            await engine.answer(proposal, "client")
        assert caught.value.code == Code.OUT_OF_MEMORY
        assert "AIORDMA_MEMORY_LIMIT_BYTES" in str(caught.value)
        assert engine.pool.used_bytes == used
        client.abandon()
        pipe, _ = await connect(engine)  # with what was given back
        assert pipe.path == "rdma"


async def test_a_copy_for_larger_rings_is_declined_on_first_contact(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_engine(memory_limit_bytes=8 << 20, ring_bytes=RING, slab_bytes=RING) as engine:
        monkeypatch.setattr(engine.backend.limits, "max_inline_bytes", 64)
        client = await engine.propose()
        proposal = clc.decode(client.proposal.encode())
        assert isinstance(proposal, clc.Proposal)
        server = await engine.answer(proposal, "client")
        accept = clc.decode(server.accept.encode())
        assert isinstance(accept, clc.Accept)
        confirm = await client.accepted(accept, "server")
        with left(engine, 0), pytest.raises(NegotiationError) as caught:
            await server.confirmed(confirm.changed(ring_bytes=16 << 20))
        assert caught.value.code == Code.OUT_OF_MEMORY
        server.abandon()
        client.abandon()


@pytest.mark.parametrize("side", ["client", "server"])
async def test_no_copy_is_made_of_a_ring_that_is_larger_than_rings_are(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer may claim 512 MiB and have a page: a few such took what all others need."""
    async with open_engine() as engine:
        monkeypatch.setattr(engine.backend.limits, "max_inline_bytes", 64)
        client = await engine.propose()
        proposal = clc.decode(client.proposal.encode())
        assert isinstance(proposal, clc.Proposal)
        server = await engine.answer(proposal, "client")
        if side == "client":
            taking = client.accepted(server.accept.changed(ring_bytes=32 << 20), "server")
        else:
            confirm = await client.accepted(server.accept, "server")
            taking = server.confirmed(confirm.changed(ring_bytes=32 << 20))
        with pytest.raises(NegotiationError) as caught:
            await taking
        assert caught.value.code == Code.LIMIT_REACHED
        server.abandon()
        client.abandon()


@pytest.mark.parametrize("own", [{"ring_bytes": 64 << 20}, {"max_ring_bytes": 64 << 20}], ids=str)
async def test_a_copy_is_made_of_a_ring_like_this_ends(
    own: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_engine(**own) as engine:
        monkeypatch.setattr(engine.backend.limits, "max_inline_bytes", 64)
        client = await engine.propose()
        proposal = clc.decode(client.proposal.encode())
        assert isinstance(proposal, clc.Proposal)
        server = await engine.answer(proposal, "client")
        await client.accepted(server.accept.changed(ring_bytes=64 << 20), "server")
        server.abandon()
        client.abandon()


@in_virtual_time
@pytest.mark.parametrize("cached", [0, 1])
async def test_the_first_links_parts_are_made_ahead(cached: int) -> None:
    """While the peer is waited for; unless no parts are kept at all."""
    async with open_engine(qp_cache=cached) as engine:
        contact = await engine.propose()
        assert not engine.cache.parked  # not before the Proposal is sent
        await anyio.sleep(60)
        assert len(engine.cache.parked) == cached
        contact.abandon()
        ahead = {parts.qp.number for parts in engine.cache.parked}
        await connect(engine)
        assert ahead <= {group.link.parts.qp.number for group in engine.all_groups}
        assert not engine.cache.parked
        (await engine.propose()).abandon()
        await anyio.sleep(60)
        assert not engine.cache.parked


async def test_fewer_parked_parts_are_kept_from_now_on() -> None:
    async with open_engine(qp_cache=4) as engine:
        (await engine.propose()).abandon()
        await until(lambda: bool(engine.cache.parked))
        engine.change_config(tuned(engine.config, qp_cache=0))
        assert not engine.cache.parked
        assert engine.statistics()["parked_qps"] == 0


async def test_a_parked_link_makes_room() -> None:
    """Links that are kept for the next peer hold memory that a ring needs more."""
    async with open_engine(memory_limit_bytes=8 << 20, ring_bytes=RING, slab_bytes=RING) as engine:
        await connect(engine)
        engine.config = engine.config.changed(traffic_class=8)
        await connect(engine)
        for group in list(engine.all_groups):
            if group.key.traffic_class != 8:
                group.close()
        assert len(engine.cache.parked) == 2
        with left(engine, 0):
            assert not engine.cache.parked


@pytest.mark.parametrize("kind", [clc.Kind.STREAM, clc.Kind.CALLS])
async def test_more_connections_than_a_link_has_numbers_for(kind: clc.Kind) -> None:
    """The next client is told so, and gets TCP."""
    async with open_engine() as engine:
        await connect(engine)
        (group,) = [group for group in engine.all_groups if group.key.side == "server"]
        (member,) = group.members
        queue_pair, ring = group.link.queue_pair, member.ring
        others = [
            RingPipe(queue_pair, rx_addr=ring.address, rx_size=ring.length, fragment=4096, owner=None)
            for _ in range(0x10000 - queue_pair.flow_count)
        ]
        used = engine.pool.used_bytes
        client = await engine.propose(kind)
        proposal = clc.decode(client.proposal.encode())
        assert isinstance(proposal, clc.Proposal)
        with pytest.raises(NegotiationError) as caught:
            await engine.answer(proposal, "client")
        assert caught.value.code == Code.LIMIT_REACHED
        client.abandon()
        for pipe in others:
            pipe.forget()
        if kind is clc.Kind.STREAM:
            assert engine.pool.used_bytes == used
        await connect(engine, kind)
