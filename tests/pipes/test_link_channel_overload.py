"""More messages than anybody takes: no receiver is ever not ready, memory is bounded, turns are fair."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import anyio
import pytest

from aiordma.errors import LinkError
from aiordma.verbs import softlib
from tests.health import until

from .channel_ends import End
from .link_pairs import connect_channels

if TYPE_CHECKING:
    from aiordma.pipes.contracts import Message

    from .link_pairs import Open

pytestmark = pytest.mark.anyio


def rnr() -> int:
    library = softlib.loaded()
    assert library is not None
    return library.rnr()


async def test_overload_never_finds_a_receiver_not_ready(open_engine: Open) -> None:
    """Eight channels on a link with a window of four; half of the receivers take nothing for a while."""
    rng = random.Random(11)
    budget = 65536
    plans = [[rng.choice([0, 64, 4000, 4700, 30_000, 100_000]) for _ in range(400)] for _ in range(8)]
    async with open_engine(window=4, recv_reserve=4, channel_receive_bytes=budget) as engine:
        counted = rnr()
        pairs = [await connect_channels(engine) for _ in plans]
        senders = [End(a) for a, _ in pairs]
        takers = [End(b, keeps_views=False) if number % 2 else None for number, (_, b) in enumerate(pairs)]

        async def feed(end: End, plan: list[int]) -> None:
            for number, size in enumerate(plan):
                await end.send(b"%d " % number, bytes(size))

        async with anyio.create_task_group() as tasks:
            for end, plan in zip(senders, plans, strict=True):
                tasks.start_soon(feed, end, plan)
            for number, taker in enumerate(takers):
                # Those that take are not held up by those that do not.
                if taker is not None:
                    await taker.received(len(plans[number]))
            for number, (a, b) in enumerate(pairs):
                if takers[number] is None:
                    assert a.statistics().outstanding <= budget + 100_064
                    assert b.statistics().receive_high_water <= budget + 100_064
                    assert 0 < a.statistics().messages_sent < len(plans[number])
            for number, (_, b) in enumerate(pairs):
                end = takers[number] or End(b, keeps_views=False)
                got = await end.received(len(plans[number]))
                assert got == [b"%d " % n + bytes(size) for n, size in enumerate(plans[number])]
        assert rnr() == counted
        # What 8 channels may have outstanding, in blocks of powers of two, at both ends; and the links.
        assert engine.pool.statistics().used_high_water < 8 * 2 * 2 * (budget + 131_072) + (4 << 20)


async def test_a_huge_message_does_not_hold_up_others(open_engine: Open) -> None:
    """Fragments take turns: what is short is through long before what is long, though that began first."""
    order: list[str] = []
    async with open_engine(max_outstanding_wrs=2, channel_receive_bytes=1 << 25) as engine:
        bulk_a, bulk_b = await connect_channels(engine)
        other_a, other_b = await connect_channels(engine)
        bulk_b.on_message = lambda message: order.append(f"bulk {len(message)}")
        other_b.on_message = lambda message: order.append(f"other {len(message)}")
        for _ in range(2):
            assert bulk_a.try_send(b"", bytes(8 << 20))
        assert other_a.try_send(b"", bytes(100_000))
        for _ in range(5):
            assert other_a.try_send(b"", bytes(64))
        with anyio.fail_after(20):
            while len(order) < 8:
                await anyio.lowlevel.checkpoint()
        assert order == ["other 100000"] + ["other 64"] * 5 + [f"bulk {8 << 20}"] * 2


async def test_small_messages_pass_between_the_fragments_of_large_ones(open_engine: Open) -> None:
    """While one channel pulls without end, a ping on another waits for a bounded number of its fragments."""
    async with open_engine(max_outstanding_wrs=8, channel_receive_bytes=1 << 22) as engine:
        bulk_a, bulk_b = await connect_channels(engine)
        ping_a, ping_b = await connect_channels(engine)
        bulk = 0
        waited: list[int] = []
        at_bulk, at_ping = End(bulk_a), End(ping_a)

        def take(message: object) -> None:
            nonlocal bulk
            bulk += 1

        bulk_b.on_message = take

        def answer(message: Message) -> None:
            assert ping_b.try_send(b"", message), "no room to answer"

        ping_b.on_message = answer

        async def load() -> None:
            while True:
                await at_bulk.send(b"", bytes(1 << 20))
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load)
            for number in range(1, 101):
                before = bulk
                await at_ping.send(b"ping")
                await at_ping.received(number)
                waited.append(bulk - before)
            tasks.cancel_scope.cancel()
        # Of the 4 MiB that may be outstanding. Many more pass if a ping waits until the queue is dry.
        assert max(waited) <= 16
        assert bulk > 0


async def test_pulls_and_the_writes_of_streams_share_the_engines_limit(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request at a time for all, on a device that takes little inline: both get their share."""
    data = random.Random(8).randbytes(400_000)
    async with open_engine(max_outstanding_wrs=1, fragment_bytes=8192, ring_bytes=65536) as engine:
        monkeypatch.setattr(engine.backend.limits, "max_inline_bytes", 64)
        stream, peer = await connect_channels(engine, kind=0)
        a, b = await connect_channels(engine)
        at_a, at_b = End(a), End(b, keeps_views=False)
        got = b""

        async def feed() -> None:
            at = 0
            while at < len(data):
                at += stream.try_send(data, at)  # type: ignore[arg-type]
                await anyio.lowlevel.checkpoint()

        async def drain() -> None:
            nonlocal got
            while len(got) < len(data):
                got += peer.try_receive(65536) or b""  # type: ignore[attr-defined]
                await anyio.lowlevel.checkpoint()

        async def call() -> None:
            for _ in range(10):
                await at_a.send(b"", data)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                for work in (feed, drain, call):
                    tasks.start_soon(work)
                assert await at_b.received(10) == [data] * 10
        assert got == data


async def test_everybody_gets_a_turn_at_the_window(open_engine: Open) -> None:
    """One channel with messages without end, one with few: the few do not wait for the many."""
    async with open_engine(window=8) as engine:
        many, many_b = await connect_channels(engine)
        few, few_b = await connect_channels(engine)
        many_b.on_message = lambda message: None
        at_few = End(few_b)
        at_many, few_sender = End(many), End(few)
        sent = 0

        async def load() -> None:
            nonlocal sent
            while True:
                await at_many.send(b"x")
                sent += 1
                await anyio.lowlevel.checkpoint()

        positions = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load)
            for number in range(1, 31):
                before = sent
                await few_sender.send(b"y")
                await at_few.received(number)
                positions.append(sent - before)
            tasks.cancel_scope.cancel()
        assert max(positions) < 200


async def test_users_may_keep_more_than_the_engine_may_register(open_engine: Open) -> None:
    """Beyond half of its memory they get copies; so what others send still finds room to be pulled into."""
    limit = 8 << 20
    async with open_engine(memory_limit_bytes=limit, ring_bytes=16384) as engine:
        a, b = await connect_channels(engine)
        at_a, at_b = End(a), End(b)
        sent = [bytes([number]) * 500_000 for number in range(40)]

        async def feed() -> None:
            for message in sent:
                await at_a.send(b"", message)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed)
            assert await at_b.received(len(sent)) == sent
        assert engine.pool.statistics().registered_high_water <= limit
        lent = [message for message in at_b.messages if not isinstance(message.obj, bytes)]  # type: ignore[union-attr]
        assert 0 < len(lent) < len(sent)


async def test_senders_wait_for_memory(open_engine: Open) -> None:
    """Many channels announce to users that take nothing: the pool is not used up, and all goes on later."""
    limit = 8 << 20
    async with open_engine(memory_limit_bytes=limit, ring_bytes=16384) as engine:
        pairs = [await connect_channels(engine) for _ in range(8)]
        senders = [End(a) for a, _ in pairs]
        done = 0

        async def feed(end: End) -> None:
            nonlocal done
            for number in range(6):
                await end.send(b"%d" % number, bytes(400_000))
                done += 1

        async with anyio.create_task_group() as tasks:
            for end in senders:
                tasks.start_soon(feed, end)
            for _ in range(200):
                await anyio.lowlevel.checkpoint()
            assert 0 < done < 48
            assert engine.pool.used_bytes <= limit
            takers = [End(b, keeps_views=False) for _, b in pairs]
            for end in takers:
                got = [message[:1] for message in await end.received(6)]
                assert got == [b"0", b"1", b"2", b"3", b"4", b"5"]


async def test_what_finds_no_room_is_put_together_outside(open_engine: Open) -> None:
    """A message that fits into the sender's memory and may never fit into the receiver's: neither waits for
    memory for ever, nor breaks the channel. So do those before and behind it, in their order.
    """
    rng = random.Random(3)
    async with open_engine(memory_limit_bytes=4 << 20, ring_bytes=16384) as engine:
        a, b = await connect_channels(engine)
        at_a, at_b = End(a), End(b)
        sent = [
            rng.randbytes(size) for size in (100_000, (1 << 20) - 10, 700_000, 64, 1 << 20, 5000, 900_001)
        ]

        async def feed() -> None:
            for message in sent:
                await at_a.send(b"head", message)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed)
            assert await at_b.received(len(sent)) == [b"head" + message for message in sent]
        assert engine.pool.statistics().registered_high_water <= 4 << 20


@pytest.mark.parametrize("how", ["close", "abort", "break"])
async def test_the_end_while_a_message_is_put_together(open_engine: Open, how: str) -> None:
    """Its sink is given back, and everything else."""
    async with open_engine(memory_limit_bytes=8 << 20, ring_bytes=16384, fragment_bytes=4096) as engine:
        a, b = await connect_channels(engine)
        end = End(b)
        assert a.try_send(b"", bytes(5 << 19))
        sources = engine.pool.budget.message_bytes
        await until(lambda: engine.pool.budget.message_bytes > sources)
        assert not end.messages
        if how == "close":
            b.close()
        elif how == "abort":
            b.abort()
        else:
            b.break_with(LinkError("a drill"))
            b.abort()
        a.close()
        await until(lambda: engine.pool.budget.message_bytes == 0)
        assert not end.messages


async def test_what_could_never_find_room_is_an_error(open_engine: Open) -> None:
    async with open_engine(memory_limit_bytes=4 << 20, ring_bytes=16384) as engine:
        a, b = await connect_channels(engine)
        end = End(b)
        with pytest.raises(MemoryError, match="AIORDMA_MEMORY_LIMIT_BYTES leaves 1048576"):
            a.try_send(b"", bytes(3 << 20))
        a.try_send(b"fine", bytes(100_000))
        assert [len(message) for message in await end.received(1)] == [100_004]
