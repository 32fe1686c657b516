"""Large pieces go straight into the buffer of the task that waits for them: every byte once and in order,
whatever happens meanwhile, and nothing is written into the buffer when it is the user's again."""

from __future__ import annotations

import contextlib
import functools
import gc
import random
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aiordma import IncompleteRead, faults
from aiordma.config import Config
from aiordma.errors import LinkError, RemoteProtocolError, VerbsError
from aiordma.links import placed_buffer, ring_size
from aiordma.pipes import _ring_resize
from aiordma.pipes._ring_buffer import room_in_buffer
from aiordma.proto.llc import ResizeStage, RingResize
from aiordma.streams import exactly
from tests.health import until
from tests.links.pairs import a_pair, member_of, pattern, sizing_of, transfer
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiordma import RdmaStream
    from aiordma.links.placed_buffer import PlacedBuffer

pytestmark = pytest.mark.anyio

KIB = 1024
MIB = 1024 * KIB
PLACES = Config(device=DEVICE, place_bytes=MIB)


class Receiver:
    """A task that receives ``count`` bytes into a buffer; with what came of it."""

    def __init__(self, stream: RdmaStream, count: int) -> None:
        self.stream, self.buffer = stream, bytearray(count)
        self.scope = anyio.CancelScope()
        self.error: Exception | None = None
        self.done = anyio.Event()

    async def run(self) -> None:
        with self.scope:
            try:
                await self.stream.receive_exactly_into(self.buffer)
            except Exception as error:
                self.error = error
        self.done.set()

    async def wait(self) -> None:
        with anyio.fail_after(60):
            await self.done.wait()


def placement_of(stream: RdmaStream) -> PlacedBuffer | None:
    return sizing_of(stream)._placement


def is_placing(stream: RdmaStream) -> bool:
    found = placement_of(stream)
    return found is not None and found.placing


def may_place(writer: RdmaStream) -> bool:
    """The writer was named a buffer, and has not filled it."""
    return room_in_buffer(member_of(writer).pipe) > 0


def placed(stream: RdmaStream) -> int:
    count: int = stream.statistics().bytes_placed
    return count


async def receive(stream: RdmaStream, count: int) -> bytes:
    got = bytearray()
    with anyio.fail_after(60):
        while len(got) < count:
            got += await stream.receive(count - len(got))
    return bytes(got)


async def send_in_task(stream: RdmaStream, data: bytes) -> None:
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        await stream.send(data)


async def piece(sender: RdmaStream, receiver: RdmaStream, start: int, count: int) -> None:
    """Send ``count`` bytes of the pattern and receive them in one piece."""
    taker = Receiver(receiver, count)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taker.run)
            await sender.send(pattern(start, count))
    assert taker.error is None
    assert taker.buffer == pattern(start, count)


async def test_a_piece_is_placed() -> None:
    async with a_pair(PLACES) as (one, other):
        await piece(one, other, 0, 5 * MIB)
        assert placed(other) > 4 * MIB
        assert other.statistics().bytes_received == one.statistics().bytes_sent == 5 * MIB
        assert placement_of(other) is None
        await transfer(one, other, 5 * MIB, 700_000)
        await piece(other, one, 0, 3 * MIB)
        assert placed(one) > 2 * MIB


async def test_a_waiting_receiver_gets_all_of_it() -> None:
    """Its buffer is named before the first byte is sent; the result of receive_exactly() can be one, too."""
    async with a_pair(PLACES) as (one, other):
        for at, send in enumerate((one.send, one.send_soon)):
            result: list[bytes] = []

            async def take(result: list[bytes] = result) -> None:
                result.append(await other.receive_exactly(2 * MIB))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(take)
                await until(lambda: may_place(one))
                sent: Any = send(pattern(at * 2 * MIB, 2 * MIB))
                if sent is not None:
                    await sent
            assert result == [pattern(at * 2 * MIB, 2 * MIB)]
            assert placed(other) == (at + 1) * 2 * MIB


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_pieces_among_small_messages(seed: int) -> None:
    """At any place of the ring, with any part of the piece in the ring already."""
    choice = random.Random(seed)
    sizes = [choice.choice([choice.randrange(1, 3000), choice.randrange(1, 4 * MIB)]) for _ in range(30)]
    config = Config(device=DEVICE, place_bytes=MIB, ring_bytes=choice.choice([16, 64, 512]) * KIB)
    async with a_pair(config) as (one, other):

        async def send() -> None:
            at = 0
            for size in sizes:
                if choice.random() < 0.5:
                    await one.send(pattern(at, size))
                else:
                    one.send_soon(pattern(at, size))
                at += size
                if choice.random() < 0.3:
                    await one.flush()
            await one.flush()

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                at = 0
                for size in sizes:
                    if size % 3:
                        buffer = bytearray(size)
                        await other.receive_exactly_into(buffer)
                        assert buffer == pattern(at, size)
                    else:
                        assert await receive(other, size) == pattern(at, size)
                    at += size
        assert placed(other) > 0


async def test_without_a_setting_large_buffers_in_huge_pages_are_placed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    huge = {True}
    monkeypatch.setattr(placed_buffer, "_WORTH_BYTES", 16 * MIB)
    monkeypatch.setattr(placed_buffer, "in_huge_pages", lambda _, nbytes: nbytes >= 16 * MIB and True in huge)
    async with a_pair(Config(device=DEVICE)) as (one, other):
        await piece(one, other, 0, 15 * MIB)
        assert placed(other) == 0
        # While a larger ring is being prepared and offered, nothing else is.
        await until(lambda: not sizing_of(other)._wanted and sizing_of(other)._prepared is None)
        taker = Receiver(other, 16 * MIB)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taker.run)
            await until(lambda: may_place(one))
            await one.send(pattern(15 * MIB, 16 * MIB))
        assert taker.buffer == pattern(15 * MIB, 16 * MIB)
        assert placed(other) == 16 * MIB
        huge.clear()
        await piece(one, other, 31 * MIB, 20 * MIB)
        assert placed(other) == 16 * MIB


@pytest.mark.parametrize("reason", ["setting", "peer", "small"])
async def test_it_comes_by_the_ring_where_it_cannot_be_placed(reason: str) -> None:
    config = Config(device=DEVICE, place_bytes=0) if reason == "setting" else PLACES
    async with a_pair(config) as (one, other):
        if reason == "peer":
            member_of(other)._link.peer_places = False
        await piece(one, other, 0, MIB - 1 if reason == "small" else 3 * MIB)
        assert placed(other) == 0


async def test_it_comes_by_the_ring_if_the_buffer_cannot_be_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: PlacedBuffer) -> int:
        raise VerbsError(12, "ibv_reg_mr")

    monkeypatch.setattr(placed_buffer.PlacedBuffer, "_register", refuse)
    async with a_pair(PLACES) as (one, other):
        await piece(one, other, 0, 3 * MIB)
        assert placed(other) == 0
        assert placement_of(other) is None


async def test_a_writer_that_cannot_pause_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ring_resize, "pause", lambda _: None)
    async with a_pair(PLACES) as (one, other):
        await piece(one, other, 0, 3 * MIB)
        await until(lambda: sizing_of(other)._never_places)
        await piece(one, other, 3 * MIB, 3 * MIB)
        assert placed(other) == 0


async def test_a_writer_that_reaches_buffers_only_slowly_fills_one() -> None:
    """As one on another host does, or one that may not write into this process."""
    async with a_pair(PLACES) as (one, other):
        taker = Receiver(other, 5 * MIB)
        with faults.injected("delay op=write ms=1") as delays:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(taker.run)
                await until(lambda: may_place(one))
                await one.send(pattern(0, 5 * MIB))
            assert 8 < delays.fired < 40, "WRITEs became longer"
        assert taker.buffer == pattern(0, 5 * MIB)
        before = placed(other)
        assert before == 5 * MIB
        await piece(one, other, 5 * MIB, 3 * MIB)
        assert placed(other) == before
        assert sizing_of(other)._never_places


async def test_a_ring_is_not_replaced_while_a_buffer_waits() -> None:
    async with a_pair(PLACES) as (one, other):
        taker = Receiver(other, 2 * MIB)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taker.run)
            await until(lambda: is_placing(other))
            sizing_of(other)._offer(64 * KIB, 0.0)
            assert not sizing_of(other)._wanted
            await one.send(pattern(0, 2 * MIB))
        assert taker.buffer == pattern(0, 2 * MIB)
        sizing_of(other)._offer(64 * KIB, 0.0)
        await until(lambda: one.credit.limit == 64 * KIB)
        await piece(one, other, 2 * MIB, 3 * MIB)
        assert placed(other) > 4 * MIB


async def test_a_piece_that_begins_while_a_ring_is_offered_is_placed_once_that_is_answered() -> None:
    async with a_pair(PLACES) as (one, other):
        sizing_of(other)._wanted = 64 * KIB
        taker = Receiver(other, 5 * MIB)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taker.run)
            await until(lambda: other.in_use)
            assert placement_of(other) is None
            sizing_of(other)._wanted = 0
            await one.send(pattern(0, 5 * MIB))
        assert taker.buffer == pattern(0, 5 * MIB)
        assert placed(other) > 4 * MIB


# ---- the task does not wait until the end


@pytest.mark.parametrize("sent", [0, 1, 100_000, 1_500_000])
async def test_a_cancelled_task_has_consumed_nothing(sent: int) -> None:
    async with a_pair(PLACES) as (one, other):
        taker = Receiver(other, 2 * MIB)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taker.run)
            await until(lambda: may_place(one))
            await one.send(pattern(0, sent))
            taker.scope.cancel()
        await taker.wait()
        assert placement_of(other) is None
        taken = bytes(taker.buffer)
        tail = anyio.create_task_group()
        async with tail as tasks:
            tasks.start_soon(send_in_task, one, pattern(sent, 2 * MIB))
            assert await receive(other, sent + 2 * MIB) == pattern(0, sent + 2 * MIB)
        assert taker.buffer == taken, "nothing was written into it afterwards"
        await piece(one, other, sent + 2 * MIB, 2 * MIB)


async def test_a_task_that_is_cancelled_before_the_peer_has_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Callable[[], None]] = []
    real = ring_size.RingSize.on_message

    def on_message(self: ring_size.RingSize, message: RingResize) -> None:
        held.append(functools.partial(real, self, message))

    async with a_pair(PLACES) as (one, other):
        monkeypatch.setattr(ring_size.RingSize, "on_message", on_message)
        taker = Receiver(other, 2 * MIB)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taker.run)
            await until(lambda: len(held) == 1)
            await one.send(pattern(0, 1000))
            taker.scope.cancel()
        assert placement_of(other) is None
        monkeypatch.setattr(ring_size.RingSize, "on_message", real)
        held.pop()()
        await until(lambda: not _ring_resize.is_paused(member_of(one).pipe))
        assert await receive(other, 1000) == pattern(0, 1000)
        await piece(one, other, 1000, 3 * MIB)
        assert placed(other) > 0


async def test_a_peer_that_does_not_let_go_loses_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does whose process was stopped. The stream goes on, on TCP."""
    monkeypatch.setattr(exactly, "_GRACE_S", 0.05)
    async with a_pair(PLACES) as (one, other):
        taker = Receiver(other, 2 * MIB)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taker.run)
            await until(lambda: may_place(one))
            await one.send(pattern(0, 700_000))
            monkeypatch.setattr(ring_size.RingSize, "on_message", lambda *_: None)
            taker.scope.cancel()
        await taker.wait()
        await until(lambda: one.path == other.path == "tcp")
        assert await receive(other, 700_000) == pattern(0, 700_000)
        await transfer(one, other, 700_000, 200_000)


# ---- the end of the stream


async def test_the_peer_finishes_in_the_middle() -> None:
    async with a_pair(PLACES) as (one, other):
        taker = Receiver(other, 2 * MIB)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taker.run)
            await until(lambda: may_place(one))
            await one.send(pattern(0, 1_200_000))
            await one.send_eof()
        assert isinstance(taker.error, IncompleteRead)
        assert taker.error.partial == pattern(0, 1_200_000)
        assert other.at_eof
        await transfer(other, one, 0, 1000)


@pytest.mark.parametrize("end", ["peer closes", "peer aborts", "own close", "own abort", "peer's link"])
async def test_the_stream_ends_in_the_middle(end: str) -> None:
    async with a_pair(PLACES) as (one, other):
        member = member_of(other)
        taker = Receiver(other, 2 * MIB)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taker.run)
            await until(lambda: may_place(one))
            await one.send(pattern(0, 1_200_000))
            if end == "peer closes":
                await one.aclose()
            elif end == "peer aborts":
                one.abort()
            elif end == "own close":
                await other.aclose()
            elif end == "own abort":
                other.abort()
            else:
                fault = RemoteProtocolError("for the test")
                member_of(one)._link.queue_pair.break_link(fault)
        assert taker.error is not None
        if end == "peer closes":
            assert isinstance(taker.error, IncompleteRead)
            assert taker.error.partial == pattern(0, 1_200_000)
        taker.error = None  # its traceback has views
        gc.collect()
        taker.buffer += b"it can be resized, so nothing else holds it"
        await until(lambda: member.pipe.is_finished or not end.startswith("own"))


# ---- the link fails


@pytest.mark.parametrize("leaver", ["writer", "reader"])
@pytest.mark.parametrize("stage", [ResizeStage.OFFER, ResizeStage.PAUSED, ResizeStage.BUFFER])
async def test_the_link_fails_between_any_two_steps(
    monkeypatch: pytest.MonkeyPatch, stage: ResizeStage, leaver: str
) -> None:
    async with a_pair(PLACES) as (one, other):
        await transfer(one, other, 0, 700_000)
        breaking = member_of(one if leaver == "writer" else other)
        real = ring_size.RingSize.on_message

        def on_message(self: ring_size.RingSize, message: RingResize) -> None:
            if message.stage == stage:
                breaking._link.queue_pair.break_link(LinkError("for the test", ""))
            else:
                real(self, message)

        monkeypatch.setattr(ring_size.RingSize, "on_message", on_message)
        taker = Receiver(other, 3 * MIB)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taker.run)
            await until(lambda: one.path == other.path == "tcp")
            await one.send(pattern(700_000, 3 * MIB))
        assert taker.error is None
        assert taker.buffer == pattern(700_000, 3 * MIB)
        await piece(one, other, 700_000 + 3 * MIB, 3 * MIB)
        await transfer(other, one, 0, 200_000)


@pytest.mark.parametrize("how", ["writer's link", "reader's link", "writer leaves", "reader leaves"])
@pytest.mark.parametrize("sent", [0, 1, 1_300_000])
async def test_the_stream_leaves_rdma_with_a_part_in_the_buffer(how: str, sent: int) -> None:
    async with a_pair(PLACES) as (one, other):
        await transfer(one, other, 0, 100_000)
        taker = Receiver(other, 2 * MIB)
        leaving = one if how.startswith("writer") else other
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taker.run)
            await until(lambda: may_place(one))
            await one.send(pattern(100_000, sent))
            if how.endswith("link"):
                member_of(leaving)._link.queue_pair.break_link(LinkError("for the test", ""))
            else:
                assert leaving._pipe.leave(0x0E000001, "for the test")  # type: ignore[attr-defined]
            await one.send(pattern(100_000 + sent, 2 * MIB - sent))
        assert taker.error is None
        assert taker.buffer == pattern(100_000, 2 * MIB)
        # A writer that has not heard that its reader leaves goes on.
        assert placed(other) == sent or how == "reader leaves"
        assert one.path == other.path == "tcp"
        await transfer(one, other, 0, 100_000)


async def test_writes_that_were_not_carried_out_are_sent_again() -> None:
    """A filter drops one, which breaks the link: the rest comes by TCP."""
    async with a_pair(PLACES) as (one, other):
        taker = Receiver(other, 2 * MIB)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taker.run)
            await until(lambda: may_place(one))
            with faults.injected("drop op=write nth=3 ms=1") as drops:
                await one.send(pattern(0, 2 * MIB))
                await taker.wait()
                assert drops.fired == 1
        assert taker.buffer == pattern(0, 2 * MIB)
        assert 0 < placed(other) < 2 * MIB
        assert one.path == other.path == "tcp"


# ---- what a peer may say


@pytest.mark.parametrize(
    "message",
    [
        {"stage": ResizeStage.BUFFER, "buffer_bytes": 1000},
        {"stage": ResizeStage.BUFFER, "buffer_bytes": 1 << 40, "paused": True},
        {"stage": ResizeStage.PAUSED, "position": 1 << 40},
        {"stage": ResizeStage.PAUSED, "position": 1 << 40, "placing": True},
        {"stage": ResizeStage.PAUSED, "position": 0, "placing": True},
    ],
)
async def test_a_peer_that_says_what_cannot_be_loses_the_link(message: dict[str, Any]) -> None:
    async with a_pair(PLACES) as (one, other):
        await transfer(one, other, 0, 1000)
        member = member_of(other)
        asked, begun = message.pop("paused", False), message.pop("placing", False)
        taker = Receiver(other, 2 * MIB)
        async with anyio.create_task_group() as tasks:
            if message["stage"] == ResizeStage.PAUSED:
                tasks.start_soon(taker.run)
                await until(lambda: is_placing(other) if begun else placement_of(other) is not None)
            elif asked:
                assert _ring_resize.pause(member.pipe) is not None
            member._link.on_llc(RingResize(token=member.pipe.token, **message).encode())
            assert isinstance(member._link.failure, RemoteProtocolError)
        if message["stage"] == ResizeStage.PAUSED:
            assert isinstance(taker.error, anyio.BrokenResourceError)


async def test_a_peer_that_goes_beyond_the_buffer_and_the_ring_is_refused() -> None:
    async with a_pair(PLACES) as (_, other):
        taker = Receiver(other, 2 * MIB)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taker.run)
            await until(lambda: is_placing(other))
            member = member_of(other)
            end = 2 * MIB + 512 * KIB
            assert not sizing_of(other)._placement.paused(end + 1)  # type: ignore[union-attr]
            taker.scope.cancel()
        await until(lambda: member.pipe.error is None)
