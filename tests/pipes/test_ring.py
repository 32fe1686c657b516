"""Ring pipes over the software device: bytes, credit, half-close, close, abort, failure."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import anyio
import pytest

from tests.processes import PATIENCE
from tests.virtual import while_time_stands_still
from tests.world import LATE

from .link_pairs import connect

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiordma.pipes._ring import RingPipe
    from aiordma.pipes._switchable import SwitchablePipe

    from .link_pairs import Open

pytestmark = pytest.mark.anyio


async def readable(pipe: SwitchablePipe) -> None:
    event = anyio.Event()
    pipe.on_readable = event.set
    if not (pipe.readable or pipe.at_eof or pipe.error):
        await event.wait()
    pipe.on_readable = None


async def writable(pipe: SwitchablePipe) -> None:
    event = anyio.Event()
    pipe.on_writable = event.set
    if not (pipe.writable or pipe.error):
        await event.wait()
    pipe.on_writable = None


async def receive(pipe: SwitchablePipe, n: int) -> bytes:
    out = b""
    while len(out) < n:
        piece = pipe.try_receive(n - len(out))
        if piece is None:
            await readable(pipe)
            continue
        if not piece:
            break
        out += piece
    return out


async def send(pipe: SwitchablePipe, data: bytes) -> None:
    at = 0
    while at < len(data):
        at += pipe.try_send(data, at)
        if at < len(data):
            await writable(pipe)


async def test_bytes_both_ways(open_engine: Open) -> None:
    async with open_engine() as engine:
        a, b = await connect(engine)
        assert a.try_send(b"ping") == 4
        assert await receive(b, 4) == b"ping"
        assert b.try_send(bytearray(b"pong!")) == 5
        assert await receive(a, 5) == b"pong!"
        assert a.try_receive(10) is None


async def test_more_than_the_ring_holds(open_engine: Open) -> None:
    data = random.Random(1).randbytes(1_000_000)
    async with open_engine(ring_bytes=16384) as engine:
        a, b = await connect(engine)
        async with anyio.create_task_group() as group:
            group.start_soon(send, a, data)
            assert await receive(b, len(data)) == data
        assert a.statistics().times_blocked > 0
        assert b.statistics().receive_high_water <= 16384


async def test_random_sizes_wrap_exactly(open_engine: Open) -> None:
    rng = random.Random(7)
    async with open_engine(ring_bytes=16384) as engine:
        a, b = await connect(engine)
        sent = bytearray()
        got = bytearray()
        for _ in range(2000):
            piece = rng.randbytes(rng.randrange(1, 9000))
            n = a.try_send(piece)
            sent += piece[:n]
            if rng.random() < 0.7:
                await anyio.lowlevel.checkpoint()
                buffer = bytearray(rng.randrange(1, 12000))
                n = b.try_receive_into(buffer)
                if n > 0:
                    got += buffer[:n]
        got += await receive(b, len(sent) - len(got))
        assert got == sent


async def test_half_close_and_close(open_engine: Open) -> None:
    async with open_engine() as engine:
        a, b = await connect(engine)
        a.try_send(b"last words")
        a.send_eof()
        with pytest.raises(anyio.ClosedResourceError):
            a.try_send(b"x")
        assert await receive(b, 100) == b"last words"
        assert b.at_eof
        b.try_send(b"answer")
        assert await receive(a, 6) == b"answer"
        finished: list[RingPipe] = []
        for pipe in (a.ring, b.ring):
            own = pipe.on_finished
            assert own is not None

            def note(ended: RingPipe, own: Callable[[RingPipe], None] = own) -> None:
                own(ended)
                finished.append(ended)

            pipe.on_finished = note
        b.close()
        a.close()
        with anyio.fail_after(5):
            while len(finished) < 2:
                await anyio.lowlevel.checkpoint()
        assert engine.pool.statistics().used_bytes == sum(
            group.link.parts.pool_bytes for group in engine.groups.values()
        )


async def test_abort_breaks_the_peer(open_engine: Open) -> None:
    async with open_engine() as engine:
        a, b = await connect(engine)
        a.abort()
        with anyio.fail_after(5):
            await readable(b)
        assert not b.at_eof
        with pytest.raises(anyio.BrokenResourceError):
            b.try_receive(1)
        with pytest.raises(anyio.BrokenResourceError):
            b.try_send(b"x")


async def test_thousand_connections_on_one_qp(open_engine: Open) -> None:
    async with open_engine(ring_bytes=16384) as engine:
        pairs = [await connect(engine) for _ in range(1000)]
        assert len(engine.groups) == 2
        for number, (a, _) in enumerate(pairs):
            await send(a, b"%d" % number)
        for number, (_, b) in enumerate(pairs):
            expected = b"%d" % number
            assert await receive(b, len(expected)) == expected
        for a, b in pairs:
            a.close()
            b.close()
        with anyio.fail_after(10):
            while any(group.members for group in engine.groups.values()):
                await anyio.lowlevel.checkpoint()


async def test_link_failure_breaks_everything_on_it(open_engine: Open) -> None:
    async with open_engine() as engine:
        pairs = [await connect(engine) for _ in range(3)]
        group = next(group for group in engine.groups.values() if group.key[1] == "client")
        group.link.queue_pair.break_link(RuntimeError("pulled the plug"))
        for a, _ in pairs:
            with pytest.raises(anyio.BrokenResourceError) as caught:
                a.try_send(b"x")
            assert str(caught.value.__cause__) == "pulled the plug"
        # The peer learns it from the device when it next says something; one word is enough for all.
        pairs[0][1].try_send(b"anybody there?")
        for _, b in pairs:
            with anyio.fail_after(5):
                await readable(b)
            with pytest.raises(anyio.BrokenResourceError):
                b.try_send(b"x")


async def test_a_link_fails_with_its_qp(open_engine: Open) -> None:
    """The peer's device refuses an access: no completion tells the victim, an asynchronous event does."""
    async with open_engine() as engine:
        a, b = await connect(engine)
        client = next(group for group in engine.groups.values() if group.key[1] == "client")
        assert client.link.queue_pair.probe(0, 0)  # zero bytes need no key
        a.ring.connect(peer_token=1, tx_addr=0x1000, tx_rkey=0xBAD00, tx_size=16384)
        a.try_send(b"into somebody else's memory")
        for pipe in (a, b):
            with anyio.fail_after(5):
                await readable(pipe)
            assert pipe.error is not None


async def test_idle_links_are_closed_and_made_again(open_engine: Open) -> None:
    async with open_engine(link_idle_ms=50_000) as engine:
        a, b = await connect(engine)
        a.close()
        b.close()
        with anyio.fail_after(5):
            while any(group.members for group in engine.all_groups):
                await anyio.lowlevel.checkpoint()
        now = engine.waker.now()
        engine.retire_idle(now + 49)
        assert len(engine.groups) == 2
        engine.retire_idle(now + 51)
        with anyio.fail_after(5):
            while engine.all_groups:
                await anyio.lowlevel.checkpoint()
                if LATE:
                    # The server closes behind its answer, and such a device may stop before it has sent it:
                    # then the client does not wait for ever.
                    engine.retire_idle(engine.waker.now() + 51)
        assert engine.pool.statistics().used_bytes == sum(parts.pool_bytes for parts in engine.cache.parked)
        # At once a new one: neither end remembers the old link.
        a, b = await connect(engine)
        a.try_send(b"again")
        assert await receive(b, 5) == b"again"


async def test_a_link_is_not_retired_while_a_new_connection_may_be_told_to_join_it(open_engine: Open) -> None:
    async with open_engine(link_idle_ms=50_000) as engine:
        a, b = await connect(engine)
        a.close()
        b.close()
        with anyio.fail_after(5):
            while any(group.members for group in engine.all_groups):
                await anyio.lowlevel.checkpoint()
        offer = await engine.propose()
        engine.retire_idle(engine.waker.now() + 51)
        assert not any(group.retired for group in engine.all_groups)
        offer.abandon()
        engine.retire_idle(engine.waker.now() + 51)
        assert [group.key[1] for group in engine.all_groups if group.retired] == ["client"]


@pytest.mark.parametrize("limit", [1 << 20, 140_000])
async def test_a_large_result_takes_what_arrives_while_it_is_copied(open_engine: Open, limit: int) -> None:
    """One look takes 32 completions at most; the cursors behind them are seen when those bytes are copied."""
    data = random.Random(3).randbytes(60 * 4096)
    async with open_engine(ring_bytes=1 << 18, window=128, busy_poll_us=1000) as engine:
        a, b = await connect(engine)
        for at in range(0, len(data), 4096):
            assert a.try_send(data[at : at + 4096]) == 4096
            assert a.spin_writable()  # tells the cursor
        while (first := b.poll_receive(limit)) is None:
            await readable(b)
        assert limit >= len(first) > 33 * 4096
        assert first + await receive(b, len(data) - len(first)) == data


async def test_poll_send_fills_the_room_that_polling_finds(open_engine: Open) -> None:
    data = random.Random(5).randbytes(1_000_000)
    async with open_engine(ring_bytes=16384) as engine:
        a, b = await connect(engine)
        at, got = 0, bytearray()
        while len(got) < len(data):
            if at < len(data):
                step = a.poll_send(data, at)
                assert step <= len(data) - at
                at += step
            got += b.poll_receive(1 << 20) or b""
            await anyio.lowlevel.checkpoint()
        assert at == len(data)
        assert got == data
        assert a.poll_send(memoryview(b"")) == 0
        b.close()
        await readable(a)
        with pytest.raises(anyio.BrokenResourceError):
            a.poll_send(b"x")


async def test_what_a_batch_brings_is_delivered_once(open_engine: Open) -> None:
    """A peer with much to send announces it piece by piece; a transport is called once for all of it."""
    async with open_engine() as engine:
        client, server = await connect(engine)
        got: list[bytes] = []
        server.pushes = True
        server.on_readable = lambda: got.append(server.try_receive(1 << 30) or b"")
        data = random.Random(0).randbytes(server.statistics().ring_bytes)
        before = server.statistics().cdcs_received
        await send(client, data)
        with anyio.fail_after(PATIENCE):
            while sum(map(len, got)) < len(data):
                await anyio.lowlevel.checkpoint()
        assert b"".join(got) == data
        assert server.statistics().cdcs_received - before > 1
        if not LATE:
            assert len(got) == 1


async def test_a_receiver_that_fails_costs_the_others_of_its_batch_nothing(open_engine: Open) -> None:
    async with open_engine() as engine:
        pairs = [await connect(engine) for _ in range(3)]
        got: list[bytes] = []

        def receives(server: SwitchablePipe, number: int) -> Callable[[], None]:
            def call() -> None:
                got.append(server.try_receive(99) or b"")
                if number == 0:
                    pairs[1][1].abort()  # whose turn would be next
                    raise RuntimeError("a protocol's mistake")

            return call

        for number, (client, server) in enumerate(pairs):
            server.pushes = True
            server.on_readable = receives(server, number)
            assert client.try_send(b"data") == 4
        with anyio.fail_after(PATIENCE):
            while len(got) < 2:
                await anyio.lowlevel.checkpoint()
        assert got == [b"data"] * 2
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        assert len(got) == 2, "a pipe that is closed is not called"


@while_time_stands_still
async def test_with_much_in_flight_work_accumulates_until_the_turn_ends(open_engine: Open) -> None:
    async with open_engine() as engine:
        client, server = await connect(engine)
        client.pushes = True
        await send(client, b"ab")
        assert await receive(server, 2) == b"ab"
        between = engine.poller.between
        between.policy.set(-1)  # adaptive; where time is given, there is no polling, and no need to stop it
        now = engine.waker.clock.now_ns() + 10**10  # the rest lasts 20 ms from then on
        while not between.crowded:
            between.sent(now)
            between.look(now)
            between.yielded(now, now)
        before = client.statistics().cdcs_sent
        assert client.try_send(b"cd") == 2
        assert client.try_send(b"ef") == 2
        assert client.statistics().cdcs_sent == before
        assert await receive(server, 4) == b"cdef"
        assert client.statistics().cdcs_sent == before + 1
