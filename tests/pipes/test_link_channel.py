"""Message channels on a link, over the software device: messages, credit, pulls, the end."""

from __future__ import annotations

import gc
import random
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aiordma.errors import LinkError
from aiordma.proto.llc import TestLink
from tests.health import until

from .channel_ends import End
from .link_pairs import connect_channels

if TYPE_CHECKING:
    from aiordma.links.engine import Engine
    from aiordma.pipes.contracts import Message

    from .link_pairs import Open

pytestmark = pytest.mark.anyio


def used(engine: Engine) -> int:
    """Registered bytes in use, but for what every link has."""
    links = {group.link for group in engine.all_groups}
    fixed = sum(link.parts.pool_bytes for link in links)
    return (
        engine.pool.used_bytes - fixed - sum(group._page.length for group in engine.all_groups if group._page)
    )


async def test_small_and_large_messages_both_ways(open_engine: Open) -> None:
    large = random.Random(1).randbytes(300_000)
    async with open_engine() as engine:
        a, b = await connect_channels(engine)
        at_a, at_b = End(a), End(b)
        assert a.try_send(b"head", b"body")
        assert a.try_send(b"", bytearray(4096))
        assert a.try_send(b"large", memoryview(large))
        assert a.try_send(b"after")
        assert at_b.messages == []
        assert await at_b.received(4) == [b"headbody", bytes(4096), b"large" + large, b"after"]
        assert [type(message) for message in at_b.messages] == [bytes, bytes, memoryview, bytes]
        assert at_b.messages[2].readonly  # type: ignore[union-attr]
        assert b.try_send(b"back", large)
        assert await at_a.received(1) == [b"back" + large]
        assert (a.statistics().large_sent, b.statistics().large_received) == (1, 1)


async def test_blocks_go_back_when_the_last_view_is_gone(open_engine: Open) -> None:
    async with open_engine() as engine:
        a, b = await connect_channels(engine)
        end = End(b)
        for _ in range(3):
            a.try_send(b"", bytes(100_000))
        await end.received(3)
        await until(lambda: a.statistics().outstanding == 0)
        assert used(engine) == 3 * 131072
        part = end.messages[1][50_000:]
        end.messages.clear()
        gc.collect()
        assert used(engine) == 131072
        assert part == bytes(50_000)
        del part
        assert used(engine) == 0


async def test_views_may_be_dropped_in_any_thread(open_engine: Open) -> None:
    async with open_engine() as engine:
        a, b = await connect_channels(engine)
        end = End(b)
        a.try_send(b"", bytes(100_000))
        await end.received(1)
        await until(lambda: a.statistics().outstanding == 0)
        with anyio.fail_after(20):
            await anyio.to_thread.run_sync(end.messages.clear)
        for group in engine.all_groups:
            group.look(engine.waker.now())
        assert used(engine) == 0


async def test_iwarp_has_no_immediate_data(open_engine: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(6)
    sent = [rng.randbytes(size) for size in (0, 1, 4095, 4096, 4600, 4640, 4660, 4661, 4672, 5000, 200_000)]
    async with open_engine() as engine:
        monkeypatch.setattr(engine.backend, "is_iwarp", True)
        a, b = await connect_channels(engine)
        at_a, at_b = End(a), End(b)
        for number, message in enumerate(sent):
            await (at_a if number % 2 else at_b).send(b"", message)
        assert await at_b.received(len(sent[1::2])) == sent[1::2]
        assert await at_a.received(len(sent[::2])) == sent[::2]
        assert a.statistics().large_sent > 0


async def test_views_outlive_the_engine(open_engine: Open) -> None:
    data = random.Random(2).randbytes(50_000)
    async with open_engine() as engine:
        a, b = await connect_channels(engine)
        end = End(b)
        a.try_send(b"", data)
        await end.received(1)
    assert end.messages[0] == data
    end.messages.clear()
    assert engine.pool.statistics().registered_bytes == 0


async def test_credit_is_bounded_and_comes_back(open_engine: Open) -> None:
    """The receiver's user takes nothing at first: the sender is stopped, and its memory and the peer's
    bounded.
    """
    budget = 65536
    async with open_engine(channel_receive_bytes=budget, window=8) as engine:
        a, b = await connect_channels(engine)
        rng = random.Random(3)
        sizes = [rng.choice([0, 10, 4000, 20_000]) for _ in range(200)]
        at_a = End(a)
        sent = 0

        async def feed() -> None:
            nonlocal sent
            for number, size in enumerate(sizes):
                await at_a.send(b"%d " % number, bytes(size))
                sent += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed)
            await anyio.wait_all_tasks_blocked()
            for _ in range(50):
                await anyio.lowlevel.checkpoint()
            assert 0 < sent < len(sizes)
            assert a.statistics().outstanding <= budget
            assert b.statistics().receive_high_water <= budget
            assert a.blocked_ns > 0 == b.blocked_ns
            end = End(b)
            got = await end.received(len(sizes))
        assert got == [b"%d " % number + bytes(size) for number, size in enumerate(sizes)]
        assert a.statistics().times_blocked > 0
        assert a.blocked_ns == 0
        assert b.statistics().receive_high_water <= budget


async def test_a_message_beyond_the_budget_goes_alone(open_engine: Open) -> None:
    async with open_engine(channel_receive_bytes=16384) as engine:
        a, b = await connect_channels(engine)
        at_a, end = End(a), End(b)
        await at_a.send(b"1")
        await at_a.send(b"2", bytes(1_000_000))
        assert not a.try_send(b"3")
        await at_a.send(b"3")
        assert [len(message) for message in await end.received(3)] == [1, 1_000_001, 1]


async def test_sizes_are_checked(open_engine: Open) -> None:
    async with open_engine(max_message_bytes=10_000) as engine:
        a, _ = await connect_channels(engine)
        with pytest.raises(ValueError, match="10001 bytes"):
            a.try_send(b"x", bytes(10_000))
        with pytest.raises(ValueError, match="head"):
            a.try_send(bytes(513))


async def test_close_comes_after_everything(open_engine: Open) -> None:
    async with open_engine() as engine:
        a, b = await connect_channels(engine)
        at_a = End(a)
        for number in range(5):
            a.try_send(b"%d" % number, bytes(200_000))
        a.close()
        with pytest.raises(anyio.ClosedResourceError):
            a.try_send(b"")
        end = End(b)
        assert await end.ended() is None
        assert len(end.messages) == 5
        assert b.error is None
        with pytest.raises(anyio.BrokenResourceError):
            b.try_send(b"")
        assert at_a.closed == []
        b.close()
        await until(lambda: a.is_finished and b.is_finished)
        end.messages.clear()
        assert used(engine) == 0
        assert not any(group.members for group in engine.all_groups)


async def test_abort_breaks_the_peer_and_gives_everything_back(open_engine: Open) -> None:
    async with open_engine() as engine:
        a, b = await connect_channels(engine)
        end = End(b)
        for _ in range(5):
            a.try_send(b"", bytes(500_000))
        a.abort()
        assert isinstance(await end.ended(), LinkError)
        with pytest.raises(anyio.BrokenResourceError) as caught:
            b.try_send(b"")
        assert caught.value.__cause__ is b.error
        b.close()
        await until(lambda: a.is_finished and b.is_finished)
        end.messages.clear()
        assert used(engine) == 0


async def test_close_with_nobody_listening_can_be_cut_short(open_engine: Open) -> None:
    async with open_engine() as engine:
        a, b = await connect_channels(engine)
        a.try_send(b"never taken", bytes(100_000))
        a.close()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert not a.is_finished
        a.abort()
        await until(lambda: b.error is not None)
        b.close()
        await until(lambda: a.is_finished and b.is_finished)
        assert used(engine) == 0


async def test_both_close_at_once(open_engine: Open) -> None:
    async with open_engine() as engine:
        a, b = await connect_channels(engine)
        End(a), End(b)
        a.try_send(b"x", bytes(100_000))
        b.try_send(b"x", bytes(100_000))
        a.close()
        b.close()
        await until(lambda: a.is_finished and b.is_finished)
        assert used(engine) == 0


async def test_a_failing_handler_breaks_its_channel_only(
    open_engine: Open, caplog: pytest.LogCaptureFixture
) -> None:
    error = RuntimeError("handler")

    def fail(message: Message) -> None:
        raise error

    async with open_engine() as engine:
        a, b = await connect_channels(engine)
        other_a, other_b = await connect_channels(engine)
        at_a, at_b, at_other = End(a), End(b), End(other_b)
        b.on_message = fail
        a.try_send(b"x")
        assert await at_b.ended() is error
        assert isinstance(await at_a.ended(), LinkError)
        other_a.try_send(b"fine")
        assert await at_other.received(1) == [b"fine"]
        assert "callback of a channel failed" in caplog.text


async def test_link_failure_breaks_all_channels(open_engine: Open) -> None:
    async with open_engine() as engine:
        pairs = [await connect_channels(engine) for _ in range(3)]
        ends = [(End(a), End(b)) for a, b in pairs]
        for a, _ in pairs:
            a.try_send(b"", bytes(100_000))
        reason = RuntimeError("pulled the plug")
        group = next(group for group in engine.groups.values() if group.key[1] == "client")
        group.link.queue_pair.break_link(reason)
        for at_a, _ in ends:
            assert at_a.closed == [reason]
            with pytest.raises(anyio.BrokenResourceError):
                at_a.channel.try_send(b"")
        pairs[0][1].try_send(b"anybody there?")
        for _, at_b in ends:
            assert isinstance(await at_b.ended(), Exception)
        for a, b in pairs:
            a.close()
            b.close()
        assert all(channel.is_finished for pair in pairs for channel in pair)


async def test_hundred_channels_and_streams_share_a_link(open_engine: Open) -> None:
    async with open_engine(window=4, max_outstanding_wrs=3, fragment_bytes=16384) as engine:
        pairs = [await connect_channels(engine) for _ in range(100)]
        assert len(engine.groups) == 2
        ends = [(End(a), End(b)) for a, b in pairs]

        async def feed(end: End, number: int) -> None:
            for part in range(4):
                await end.send(b"%d.%d" % (number, part), bytes(40_000 * (part % 2)))

        async with anyio.create_task_group() as tasks:
            for number, (at_a, at_b) in enumerate(ends):
                tasks.start_soon(feed, at_a, number)
                tasks.start_soon(feed, at_b, number + 1000)
            for number, (at_a, at_b) in enumerate(ends):
                for end, first in ((at_b, number), (at_a, number + 1000)):
                    assert await end.received(4) == [
                        b"%d.%d" % (first, part) + bytes(40_000 * (part % 2)) for part in range(4)
                    ]


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("inline", [1, 1 << 20])
async def test_the_smallest_windows(
    open_engine: Open, window: int, inline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ends send all the time, so acknowledgements and credit must find their way past full windows."""
    rng = random.Random(window)
    plans = [[rng.randbytes(rng.choice([0, 100, 4600, 6000, 70_000])) for _ in range(300)] for _ in range(4)]
    async with open_engine(window=window, recv_reserve=4, channel_receive_bytes=32768) as engine:
        monkeypatch.setattr(engine.backend.limits, "max_inline_bytes", inline)
        ends = [
            End(one, keeps_views=False)
            for pair in [await connect_channels(engine) for _ in range(2)]
            for one in pair
        ]

        async def feed(end: End, plan: list[bytes]) -> None:
            for message in plan:
                await end.send(message[:8], message[8:])

        async with anyio.create_task_group() as tasks:
            for end, plan in zip(ends, plans, strict=True):
                tasks.start_soon(feed, end, plan)
            for number, end in enumerate(ends):
                expected = plans[number ^ 1]
                assert await end.received(len(expected)) == expected


@pytest.mark.parametrize("inline", [0, 64, 220])
async def test_devices_with_little_inline(
    open_engine: Open, inline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(inline)
    async with open_engine(window=4) as engine:
        # 0 would mean "not known yet". The limits are the device's, known to all engines of the process.
        monkeypatch.setattr(engine.backend.limits, "max_inline_bytes", inline or 1)
        a, b = await connect_channels(engine)
        # Devices may grant more than they are asked for: rxe the room of the one SGE that each request has.
        assert next(iter(engine.groups.values())).link.queue_pair.max_inline <= max(inline, 16)
        at_a, at_b = End(a), End(b)
        sent = [rng.randbytes(rng.choice([0, 3, 200, 4500, 9000])) for _ in range(500)]
        async with anyio.create_task_group() as tasks:

            async def feed() -> None:
                for message in sent:
                    await at_a.send(b"", message)

            tasks.start_soon(feed)
            assert await at_b.received(len(sent)) == sent


async def test_credit_that_is_gone_when_a_large_message_is_copied(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy lets other threads run, and the one that helps blocked loops takes credit."""
    answer = TestLink(response=True).encode()  # which nothing waits for
    async with open_engine(window=8) as engine:
        a, b = await connect_channels(engine)
        at_a, at_b = End(a), End(b)
        (group,) = [group for group in engine.all_groups if group.key.side == "client"]
        messages, used_up = group.messages, 0
        take = messages.take_source

        def take_source(length: int) -> Any:
            nonlocal used_up
            while used_up < 8 and group.link.queue_pair.send_llc(answer):
                used_up += 1
            return take(length)

        monkeypatch.setattr(messages, "take_source", take_source)
        await at_a.send(b"large", bytes(100_000))
        assert used_up > 1
        assert await at_b.received(1) == [b"large" + bytes(100_000)]
        await at_b.send(b"back")
        assert await at_a.received(1) == [b"back"]
        assert group.active
        await until(lambda: a.statistics().outstanding == 0)
        at_b.messages.clear()
        assert used(engine) == 0
