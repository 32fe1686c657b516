"""Rings that follow their traffic: their first size, growth, shrinking, and what a peer may say of it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aiordma import connect_datagram, faults, listen_datagram
from aiordma.config import Config
from aiordma.errors import LinkError, RemoteProtocolError
from aiordma.links import engine as engines
from aiordma.links import ring_size
from aiordma.pipes import _ring_resize
from aiordma.proto.llc import AnnounceAck
from aiordma.proto.llcown import ResizeStage, RingResize
from aiordma.verbs.huge_pages import HUGE_BYTES, use_huge_pages
from aiordma.verbs.memory.pool import MemoryPool
from tests.health import until
from tests.links.pairs import a_pair, member_of, pattern, sizing_of, transfer
from tests.pages import resident, shared
from tests.roles import LOCAL
from tests.tuned import tuned
from tests.virtual import in_virtual_time
from tests.world import DEVICE

if TYPE_CHECKING:
    from aiordma import DatagramConnection, RdmaStream
    from aiordma.verbs.memory.arena import Block

pytestmark = pytest.mark.anyio

KIB, MIB = 1024, 1 << 20
#: So small that streams begin with the smallest ring.
SHORT = tuned(device=DEVICE, memory_limit_bytes=4 << 20, slab_bytes=1 << 20)
AMPLE = Config(device=DEVICE)


def own_ring(stream: RdmaStream) -> int:
    return member_of(stream).ring.length


def has_ring(writer: RdmaStream, size: int) -> bool:
    return peers_ring(writer) == size


def offer(owner: RdmaStream, size: int) -> None:
    """Have this end offer a ring of another size."""
    sizing_of(owner)._offer(size, 0.0)


def peers_ring(stream: RdmaStream) -> int:
    return stream.credit.limit


def pool_with(used: int, limit: int = 1 << 30) -> MemoryPool:
    pool = MemoryPool(limit_bytes=limit)
    pool.budget.used_bytes = used
    return pool


@pytest.mark.parametrize(
    ("used_part", "size"),
    [(0, 512 * KIB), (0.1, 512 * KIB), (0.2, 64 * KIB), (0.3, 16 * KIB), (0.9, 16 * KIB)],
)
def test_the_first_ring_is_smaller_the_more_memory_is_in_use(used_part: float, size: int) -> None:
    assert ring_size.first_ring_bytes(AMPLE, pool_with(int((1 << 30) * used_part))) == size


async def test_rings_that_begin_small_for_want_of_memory_are_counted() -> None:
    engine = await engines.current(SHORT)
    before = engine.pool.statistics().downgrades
    async with a_pair(SHORT) as (one, other):
        assert max(own_ring(one), own_ring(other)) < SHORT.ring_bytes
        assert engine.pool.statistics().downgrades >= before + 2
    engine.close()


def test_small_rings_that_are_asked_for_stay_small() -> None:
    config = Config(ring_bytes=16 * KIB)
    assert {ring_size.first_ring_bytes(config, pool_with(used << 20)) for used in (0, 200, 900)} == {16 * KIB}


async def test_a_ring_grows_while_its_writer_waits_and_its_reader_keeps_up() -> None:
    async with a_pair(SHORT) as (one, other):
        before = peers_ring(one)
        assert before == own_ring(other) < 512 * KIB
        at = 0
        with anyio.fail_after(60):
            while peers_ring(one) == before:
                await transfer(one, other, at, 300_000)
                at += 300_000
        assert own_ring(other) == peers_ring(one) > before
        await transfer(one, other, at, 300_000)
        await transfer(other, one, 0, 300_000)


async def test_a_ring_grows_beyond_its_first_size_while_its_writer_sleeps() -> None:
    config = Config(device=DEVICE, ring_bytes=16 * KIB, max_ring_bytes=128 * KIB, busy_poll_us=0)
    async with a_pair(config) as (one, other):
        assert peers_ring(one) == own_ring(other) == 16 * KIB
        at = 0
        with anyio.fail_after(60):
            while peers_ring(one) < 128 * KIB:
                await transfer(one, other, at, 300_000)
                at += 300_000
        await transfer(one, other, at, 3_000_000)
        assert own_ring(other) == peers_ring(one) == 128 * KIB, "no larger than max_ring_bytes"
        assert own_ring(one) == 16 * KIB, "nothing went in the other direction"


#: Rings that grow from one without huge pages into one with them.
LARGE = tuned(
    device=DEVICE, ring_bytes=1024 * KIB, max_ring_bytes=4096 * KIB, slab_bytes=4096 * KIB, busy_poll_us=0
)


async def test_a_large_ring_is_in_memory_before_its_writer_has_it() -> None:
    async with a_pair(LARGE) as (one, other):
        assert own_ring(other) == 1024 * KIB
        member, at = member_of(other), 0
        with anyio.fail_after(60):
            while peers_ring(one) == 1024 * KIB:
                await transfer(one, other, at, 1_500_000)
                at += 1_500_000
        assert own_ring(other) == peers_ring(one) == 4096 * KIB
        assert member.ring.address % HUGE_BYTES == 0
        memory, address = shared(HUGE_BYTES)
        if use_huge_pages(address, HUGE_BYTES):
            assert resident(member.ring.address, member.ring.length) == member.ring.length
        memory.close()
        await transfer(one, other, at, 9_000_000)
        await transfer(other, one, 0, 9_000_000)


def prepare(stream: RdmaStream) -> Block:
    """Have this end prepare a ring of 4 MiB; it, before it is offered."""
    sizing = sizing_of(stream)
    sizing._turned_at = member_of(stream).group.engine.waker.now()
    sizing.turned()
    assert sizing._prepared is not None
    return sizing._prepared


async def test_a_prepared_ring_that_is_refused_is_given_back() -> None:
    async with a_pair(LARGE) as (one, other):
        await transfer(one, other, 0, 1000)
        ring = prepare(other)
        sizing_of(other).turned()
        assert sizing_of(other)._prepared is ring, "one at a time"
        await until(lambda: ring.freed)  # its writer has not slept for room
        assert own_ring(other) == 1024 * KIB
        assert not sizing_of(other)._wanted
        await transfer(one, other, 1000, 2_000_000)


async def test_a_writer_that_refuses_is_asked_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ring_resize, "recent_high_water", lambda _: MIB)  # so the ring does not shrink
    async with a_pair(LARGE) as (one, other):
        await transfer(one, other, 0, 1000)
        pipe, sizing = member_of(other).pipe, sizing_of(other)
        for seconds in (10, 20, 40):
            ring = prepare(other)
            await until(functools.partial(getattr, ring, "freed"))
            now = member_of(other).group.engine.waker.now()
            for later, grows in ((seconds - 3, False), (seconds + 1, True)):
                sizing._judged_at = now - 100
                sizing.look(now + later)
                assert pipe.grows is grows


async def test_a_stream_that_ends_while_its_ring_is_prepared() -> None:
    async with a_pair(LARGE) as (one, other):
        await transfer(one, other, 0, 1000)
        ring = prepare(other)
        one.abort()
        await other.aclose()
        await until(lambda: ring.freed)
        # Its thread ends later; what it has prepared is not offered.
        engine = await engines.current(LARGE)
        await until(lambda: not any(group.members for group in engine.all_groups))


async def test_a_smaller_ring_that_was_offered_meanwhile_goes_first() -> None:
    async with a_pair(LARGE) as (one, other):
        await transfer(one, other, 0, 1000)
        ring = prepare(other)
        offer(other, 64 * KIB)
        await until(functools.partial(has_ring, one, 64 * KIB))
        await until(lambda: ring.freed)
        await transfer(one, other, 1000, 500_000)


async def test_a_writer_that_has_not_slept_keeps_its_ring_until_it_is_asked_again() -> None:
    config = Config(device=DEVICE, ring_bytes=2 * MIB, max_ring_bytes=8 * MIB, busy_poll_us=0)
    async with a_pair(config) as (one, other):
        await transfer(one, other, 0, 1_000)
        offer(other, 8 * MIB)
        await until(lambda: not sizing_of(other)._wanted)
        assert own_ring(other) == peers_ring(one) == 2 * MIB
        assert not member_of(other).pipe.grows
        member = member_of(other)
        member.look(member.group.engine.waker.now() + 11)
        assert member.pipe.grows
        await transfer(one, other, 1_000, 100_000)


async def test_a_ring_larger_than_the_caches_of_both_ends_is_taken_by_a_writer_that_polls() -> None:
    async with a_pair(AMPLE) as (one, other):
        await transfer(one, other, 0, 1_000)
        offer(other, 2 * MIB)
        await until(functools.partial(has_ring, one, 2 * MIB))
        await transfer(one, other, 1_000, 3_000_000)


async def test_a_smaller_ring_is_taken_by_any_writer() -> None:
    async with a_pair(Config(device=DEVICE, ring_bytes=64 * KIB, max_ring_bytes=128 * KIB)) as (one, other):
        offer(other, 16 * KIB)
        await until(functools.partial(has_ring, one, 16 * KIB))
        await transfer(one, other, 0, 100_000)


@in_virtual_time
async def test_a_writer_whose_reader_does_not_read_gets_no_larger_ring() -> None:
    async with a_pair(SHORT) as (one, other):
        size = peers_ring(one)
        with anyio.move_on_after(60):
            await one.send(bytes(2 * size))
        assert (peers_ring(one), own_ring(other)) == (size, size)


async def shrink(stream: RdmaStream, peer: RdmaStream) -> None:
    """Have the ring of ``stream`` judged as after a quiet time."""
    member = member_of(stream)
    size = member.ring.length
    now = member.group.engine.waker.now()
    for times in (1, 2):
        member.look(now + 11 * times)
    await until(
        lambda: member.ring.length < size and peers_ring(peer) == member.ring.length,
        lambda: (size, member.ring.length, peers_ring(peer)),
    )


async def test_a_ring_that_is_not_needed_shrinks_and_grows_again() -> None:
    async with a_pair(AMPLE) as (one, other):
        assert own_ring(other) == 512 * KIB
        await transfer(one, other, 0, 1000)
        used = member_of(other).group.engine.pool.used_bytes
        await shrink(other, one)
        assert own_ring(other) == 16 * KIB
        assert member_of(other).group.engine.pool.used_bytes == used - 496 * KIB
        await transfer(one, other, 1000, 100_000)
        at = 101_000
        with anyio.fail_after(60):
            while own_ring(other) < 512 * KIB:
                await transfer(one, other, at, 300_000)
                at += 300_000


async def test_a_ring_that_was_well_used_does_not_shrink() -> None:
    async with a_pair(AMPLE) as (one, other):
        await one.send(pattern(0, 200_000))
        await until(lambda: member_of(other).pipe.readable == 200_000)
        member = member_of(other)
        member.look(member.group.engine.waker.now() + 11)
        assert not sizing_of(other)._wanted
        await other.receive()


async def test_unread_bytes_move_to_the_new_ring() -> None:
    """In each place of the old ring, also around its end."""
    async with a_pair(SHORT) as (one, other):
        at = 0
        for step in (5_000, 9_000, 3_000, 12_345, 60_000):
            member = member_of(other)
            await one.send(pattern(at, 10_000))
            await until(lambda: member_of(other).pipe.readable == 10_000)
            size = 32 * KIB if member.ring.length != 32 * KIB else 64 * KIB
            offer(other, size)
            await until(functools.partial(has_ring, one, size))
            got = b""
            while len(got) < 10_000:
                got += await other.receive()
            assert got == pattern(at, 10_000)
            at += 10_000
            await transfer(one, other, at, step)
            at += step


async def test_a_view_outlives_the_ring_that_it_is_of() -> None:
    async with a_pair(SHORT) as (one, other):
        await one.send(pattern(0, 5_000))
        await until(lambda: member_of(other).pipe.readable == 5_000)
        member = member_of(other)
        view = member.pipe.view()
        old = member.ring
        offer(other, 32 * KIB)
        await until(lambda: peers_ring(one) == 32 * KIB)
        await one.send(pattern(5_000, 20_000))
        await until(lambda: member.pipe.readable == 25_000)
        assert bytes(view) == pattern(0, 5_000)
        assert not old.freed
        member.pipe.consume(1_000)
        member.look(0.0)
        await until(lambda: old.freed)
        got = b""
        while len(got) < 24_000:
            got += await other.receive()
        assert got == pattern(1_000, 24_000)


@pytest.mark.parametrize("leaver", ["writer", "reader"])
@pytest.mark.parametrize("stage", [None, ResizeStage.OFFER, ResizeStage.PAUSED, ResizeStage.RING])
async def test_the_link_fails_between_any_two_steps(
    monkeypatch: pytest.MonkeyPatch, stage: ResizeStage | None, leaver: str
) -> None:
    """Every byte arrives once, by RDMA before the failure and by TCP after it."""
    async with a_pair(AMPLE) as (one, other):
        await transfer(one, other, 0, 700_000)
        await one.send(pattern(700_000, 10_000))
        await until(lambda: member_of(other).pipe.readable == 10_000)
        breaking = member_of(one if leaver == "writer" else other)
        real = ring_size.RingSize.on_message

        def on_message(self: ring_size.RingSize, message: RingResize) -> None:
            if message.stage == stage:
                breaking._link.queue_pair.break_link(LinkError("for the test", ""))
            else:
                real(self, message)

        monkeypatch.setattr(ring_size.RingSize, "on_message", on_message)
        offer(other, 64 * KIB)
        if stage is None:
            breaking._link.queue_pair.break_link(LinkError("for the test", ""))
        await until(lambda: one.path == other.path == "tcp")
        got = b""
        with anyio.fail_after(30):
            while len(got) < 10_000:
                got += await other.receive()
        assert got == pattern(700_000, 10_000)
        await transfer(one, other, 710_000, 200_000)
        await transfer(other, one, 0, 200_000)


@pytest.mark.parametrize(
    "message",
    [
        {"stage": ResizeStage.RING, "ring_bytes": 64 * KIB},
        {"stage": ResizeStage.PAUSED, "position": 1 << 40},
    ],
)
async def test_a_peer_that_says_what_cannot_be_loses_the_link(message: dict[str, Any]) -> None:
    async with a_pair(AMPLE) as (one, other):
        await transfer(one, other, 0, 1000)
        member = member_of(other)
        if message["stage"] == ResizeStage.PAUSED:
            sizing_of(other)._wanted = 16 * KIB
        member._link.on_llc(RingResize(token=member.pipe.token, **message).encode())
        assert isinstance(member._link.failure, RemoteProtocolError)


async def test_a_message_about_a_stream_that_is_gone_is_ignored() -> None:
    async with a_pair(AMPLE) as (one, other):
        member = member_of(other)
        stale = (member.pipe.token + (1 << 16)) & 0xFFFFFFFF
        member._link.on_llc(RingResize(token=stale, stage=ResizeStage.OFFER).encode())
        await transfer(one, other, 0, 1000)


async def test_a_writer_at_its_end_refuses_and_is_not_asked_again() -> None:
    async with a_pair(AMPLE) as (one, other):
        await one.send_eof()
        await until(lambda: member_of(other).pipe.at_eof)
        offer(other, 16 * KIB)
        await until(lambda: not sizing_of(other)._wanted)
        assert own_ring(other) == 512 * KIB
        await transfer(other, one, 0, 1000)


async def test_two_offers_get_one_answer() -> None:
    """A writer whose process was stopped finds the offer that its peer forgot, and the next one."""
    async with a_pair(AMPLE) as (one, other):
        offer(other, 64 * KIB)
        sizing_of(other)._wanted = 0
        offer(other, 32 * KIB)
        await until(functools.partial(has_ring, one, 32 * KIB))
        await transfer(one, other, 0, 100_000)
        assert (one.path, other.path) == ("rdma", "rdma")


async def test_pausing_holds_the_writer_until_the_ring_is_named() -> None:
    async with a_pair(AMPLE) as (one, other):
        ring: Any = member_of(one).pipe
        assert _ring_resize.pause(ring) == 0
        assert (ring.try_send(b"x"), one.credit.available) == (0, 0)
        mine = member_of(other).ring
        assert _ring_resize.resume(ring, mine.address, mine.rkey, mine.length)
        assert not _ring_resize.resume(ring, mine.address, mine.rkey, mine.length)
        await transfer(one, other, 0, 1000)


async def test_what_is_freed_is_given_back_while_a_stream_lives() -> None:
    """The pages of a ring that shrank cost nothing."""
    async with a_pair(AMPLE) as (one, other):
        await transfer(one, other, 0, 2_000_000)
        old = member_of(other).ring.address
        await shrink(other, one)
        await until(lambda: not resident(old, 512 * KIB))


async def test_the_ring_of_datagrams_keeps_its_size() -> None:
    """The largest datagram must not change while the connection lives."""
    sizes = []

    async def receive(connection: DatagramConnection) -> None:
        sizes.append(len(await connection.receive()))

    async with await listen_datagram(LOCAL, config=SHORT) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, receive)
        async with await connect_datagram(LOCAL, listener.port, mode="rdma", config=SHORT) as connection:
            largest = connection.max_message_bytes
            assert largest == 512 * KIB - 4
            engine = await engines.current(SHORT)
            for group in engine.all_groups:
                for times in (1, 2):
                    group.look(engine.waker.now() + 11 * times)
            await connection.send(bytes(largest))
            await until(lambda: sizes == [largest])
        tasks.cancel_scope.cancel()


async def test_the_engine_is_left_as_it_was() -> None:
    async with a_pair(AMPLE) as (one, other):
        await transfer(one, other, 0, 1000)
        await shrink(other, one)
        await shrink(one, other)
    engine = await engines.current(AMPLE)
    await until(lambda: not any(group.members for group in engine.all_groups))
    assert engine.pool.used_bytes == sum(
        group.link.parts.pool_bytes + group.pregranted.ring_bytes for group in engine.all_groups
    )


async def test_a_peer_that_is_stopped_is_not_offered_rings_without_end() -> None:
    """It takes no messages, which is no fault of it: what one end may ask again does not pile up."""
    async with a_pair(SHORT) as (one, other):
        await transfer(one, other, 0, 1000)
        link = member_of(other).group.link
        with faults.injected("delay dir=in op=llc,cdc ms=86400000"):
            while link.queue_pair.send_llc(AnnounceAck().encode()):
                pass
            for size in [32 * KIB, 128 * KIB] * 5_000:
                sizing_of(other)._wanted = 0  # as when it was not answered for a while
                offer(other, size)
            assert link.queue_pair.llc_waiting == 1
            assert link.failure is None
        await until(lambda: not link.queue_pair.llc_waiting)
        await transfer(one, other, 1000, 1_000_000)
