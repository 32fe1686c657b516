"""Behaviours of writing: flow control, buffers, and order."""

from __future__ import annotations

import array
import asyncio
import sys
from typing import Any

from .stage import KeepsOpen, Stage, Traced, attempt
from .table import behaviour

#: More than the kernel's buffers, or a ring, hold.
_MUCH = 16_000_000


class Quiet(Traced):
    """Does not note flow control, whose moments are each carrier's own."""

    paused = False

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False


class Resumes(Quiet):
    """Tells a task that waits, as drain() does."""

    def connection_made(self, transport: Any) -> None:
        self.may_write = asyncio.Event()
        super().connection_made(transport)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.may_write.set()

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.may_write.set()


class Alternates(Quiet):
    """Notes a pause that follows a pause, or the same of resume."""

    def pause_writing(self) -> None:
        if self.paused:
            self.events.append("paused twice")
        self.paused = True

    def resume_writing(self) -> None:
        if not self.paused:
            self.events.append("resumed twice")
        self.paused = False


class Counts(Quiet):
    """Counts bytes instead of keeping them."""

    count = 0

    def data_received(self, data: bytes) -> None:
        self.count += len(data)


@behaviour
async def write_limits_by_default(stage: Stage) -> None:
    """The water marks are those of the loop."""
    near, far = await stage.pair()
    stage.note("limits", [each.transport.get_write_buffer_limits() for each in (near, far)])


@behaviour
async def write_limits_that_are_set(stage: Stage) -> None:
    """set_write_buffer_limits() fills in the other limit, and refuses limits in the wrong order."""
    near, _ = await stage.pair()
    for limits in ({}, {"high": 100}, {"low": 10}, {"high": 0}, {"high": 7, "low": 7}, {"high": 8, "low": 2}):
        stage.note("set", attempt(near.transport.set_write_buffer_limits, **limits))
        stage.note("limits", near.transport.get_write_buffer_limits())
    stage.note("refused", attempt(near.transport.set_write_buffer_limits, high=1, low=2))
    stage.note("negative", attempt(near.transport.set_write_buffer_limits, high=-1))


@behaviour
async def an_idle_buffer_is_empty(stage: Stage) -> None:
    """What has been taken by the peer is not in get_write_buffer_size()."""
    near, far = await stage.pair()
    near.transport.write(b"x" * 1000)
    await stage.until(lambda: len(far.data) == 1000)
    stage.note("size", near.transport.get_write_buffer_size())


@behaviour
async def a_peer_that_does_not_read(stage: Stage) -> None:
    """Writing pauses the protocol once, and resumes it when the peer has read; nothing is lost."""
    near, far = await stage.pair(Alternates, Counts)
    far.transport.pause_reading()
    near.transport.write(bytes(_MUCH))
    await stage.until(lambda: near.paused)
    stage.note("waits", near.transport.get_write_buffer_size() > 0)
    far.transport.resume_reading()
    await stage.until(lambda: far.count == _MUCH and not near.paused)
    stage.note("waits", near.transport.get_write_buffer_size())


@behaviour
async def close_waits_for_a_slow_peer(stage: Stage) -> None:
    """close() after a large write: everything arrives, then EOF; connection_lost() comes after that."""
    near, far = await stage.pair(Quiet, Counts)
    far.transport.pause_reading()
    near.transport.write(bytes(_MUCH))
    near.transport.close()
    await stage.turns()
    stage.note("lost before it was sent", near.ended)
    far.transport.resume_reading()
    await stage.both_end()
    stage.note("arrived", far.count)


@behaviour
async def abort_with_a_full_buffer(stage: Stage) -> None:
    """abort() ends at once, whatever waits."""
    near, far = await stage.pair(Quiet, Counts)
    far.transport.pause_reading()
    near.transport.write(bytes(_MUCH))
    await stage.until(lambda: near.paused)
    near.transport.abort()
    await stage.until(lambda: near.ended)


@behaviour
async def the_peer_of_an_abort(stage: Stage) -> None:
    """abort() with much that waits: the peer reads what had left before, and then comes to an end."""
    near, far = await stage.pair(Quiet, Counts)
    far.transport.pause_reading()
    near.transport.write(bytes(_MUCH))
    await stage.until(lambda: near.paused)
    near.transport.abort()
    await stage.until(lambda: near.ended)
    far.transport.resume_reading()
    await stage.until(lambda: far.ended)
    stage.note("a part arrived", 0 < far.count < _MUCH)


async def _write_on(end: Resumes) -> bool:
    """Write until the connection is closing, and wait only when told to; whether it always was told."""
    while not end.transport.is_closing():
        for _ in range(2000):
            if end.paused or end.transport.is_closing():
                break
            end.transport.write(bytes(65536))
        else:
            return False
        end.may_write.clear()
        if end.paused and not end.ended:
            await end.may_write.wait()
    return True


@behaviour
async def writes_that_leave_the_loop_no_turn(stage: Stage) -> None:
    """Who writes until it is told to wait is told, although the peer closes and no callback can run."""
    for _ in range(5):
        near, far = await stage.pair(Resumes, Counts)
        writing = asyncio.ensure_future(_write_on(near))
        while not near.paused:
            await stage.turns(1)
        await stage.turns()
        far.transport.close()
        stage.note("told", await writing)
        near.transport.abort()
        await stage.both_end()
        near.events.clear()  # whether it sees an EOF or an error first is not what this is about


@behaviour
async def eof_waits_for_a_slow_peer(stage: Stage) -> None:
    """write_eof() after a large write comes behind all of it."""
    near, far = await stage.pair(Quiet, Counts)
    near.transport.write(bytes(_MUCH))
    near.transport.write_eof()
    await stage.both_end()
    stage.note("arrived", far.count)


@behaviour
async def a_high_mark_of_zero(stage: Stage) -> None:
    """With a high mark of 0, a write that cannot be sent at once pauses."""
    near, far = await stage.pair(Quiet, Counts)
    near.transport.set_write_buffer_limits(high=0)
    far.transport.pause_reading()
    near.transport.write(bytes(_MUCH))
    await stage.until(lambda: near.paused)
    far.transport.resume_reading()
    await stage.until(lambda: far.count == _MUCH and not near.paused)


@behaviour
async def many_small_writes(stage: Stage) -> None:
    """A thousand writes arrive in order."""
    near, far = await stage.pair()
    for number in range(1000):
        near.transport.write(number.to_bytes(2))
    await stage.until(lambda: len(far.data) == 2000)


@behaviour
async def writes_behind_a_full_buffer(stage: Stage) -> None:
    """Small and large writes of all kinds behind what waits keep their order and their content."""
    near, far = await stage.pair(Quiet, Quiet)
    far.transport.pause_reading()
    near.transport.write(bytes(_MUCH))
    await stage.until(lambda: near.paused)
    changed = bytearray(b"b" * 70_000)
    near.transport.write(changed)
    if sys.version_info < (3, 12):  # later releases keep what they are given, and not a copy
        changed[:] = bytes(70_000)
    near.transport.writelines([b"c" * 10, bytearray(b"d" * 100_000), memoryview(b"e" * 5)])
    near.transport.write(b"f")
    far.transport.resume_reading()
    await stage.until(lambda: len(far.data) == _MUCH + 170_016)
    tail = bytes(far.data[_MUCH:])
    stage.note("right", tail == b"b" * 70_000 + b"c" * 10 + b"d" * 100_000 + b"e" * 5 + b"f")
    far.events.clear()


@behaviour
async def lines_of_other_types(stage: Stage) -> None:
    """writelines() with something that has no bytes sends no part."""
    near, far = await stage.pair()
    wrong: list[Any] = [["text", b"a"], [1, b"a"], None, "text", 5]
    if sys.version_info < (3, 15):  # 3.15.0's buffers what stands before it, and then sends nothing any more
        wrong += [[b"a", "text"], [b"a", 1]]
    stage.note("errors", [attempt(near.transport.writelines, each) for each in wrong])
    near.transport.write(b"end")
    await stage.until(lambda: far.data.endswith(b"end"))


@behaviour
async def lines_after_close(stage: Stage) -> None:
    """writelines() after close() does nothing."""
    near, far = await stage.pair()
    near.transport.close()
    stage.note("writelines", attempt(near.transport.writelines, [b"a", b"b"]))
    await stage.both_end()
    stage.note("arrived", bytes(far.data))


@behaviour
async def lines_after_eof(stage: Stage) -> None:
    """writelines() after write_eof() is an error."""
    near, far = await stage.pair(far=KeepsOpen)
    near.transport.write_eof()
    stage.note("writelines", attempt(near.transport.writelines, [b"a", b"b"]))
    await stage.until(lambda: "eof" in far.events)


@behaviour
async def views_with_items(stage: Stage) -> None:
    """A memoryview of items longer than a byte is sent whole."""
    near, far = await stage.pair()
    near.transport.write(memoryview(array.array("H", [1, 2, 3])))
    await stage.until(lambda: len(far.data) == 6)


@behaviour
async def a_view_of_two_dimensions(stage: Stage) -> None:
    """A memoryview of several dimensions is sent whole."""
    near, far = await stage.pair()
    near.transport.write(memoryview(b"abcdef").cast("B", (2, 3)))
    await stage.until(lambda: len(far.data) == 6)


@behaviour
async def eof_twice(stage: Stage) -> None:
    """The second write_eof() does nothing."""
    near, far = await stage.pair(far=KeepsOpen)
    near.transport.write_eof()
    stage.note("again", attempt(near.transport.write_eof))
    await stage.until(lambda: "eof" in far.events)
    await stage.turns()


@behaviour
async def eof_after_close(stage: Stage) -> None:
    """write_eof() after close() does nothing."""
    near, _ = await stage.pair()
    near.transport.close()
    stage.note("write_eof", attempt(near.transport.write_eof))
    await stage.both_end()


@behaviour
async def close_after_eof(stage: Stage) -> None:
    """close() after write_eof() gives the peer one EOF."""
    near, _ = await stage.pair()
    near.transport.write(b"all")
    near.transport.write_eof()
    near.transport.close()
    await stage.both_end()


@behaviour
async def both_write_eof(stage: Stage) -> None:
    """Both ends half-close: each gets one EOF and an end without an error."""
    near, far = await stage.pair()
    near.transport.write(b"from near")
    far.transport.write(b"from far")
    await stage.until(lambda: len(near.data) == 8 and len(far.data) == 9)
    near.transport.write_eof()
    far.transport.write_eof()
    await stage.both_end()


@behaviour
async def half_closed_on_both_sides_stays_open(stage: Stage) -> None:
    """Where both eof_received() return true, the transports stay open until they are closed."""
    near, far = await stage.pair(KeepsOpen, KeepsOpen)
    near.transport.write_eof()
    far.transport.write_eof()
    await stage.until(lambda: "eof" in near.events and "eof" in far.events)
    stage.note("closing", [near.transport.is_closing(), far.transport.is_closing()])
    near.transport.close()
    far.transport.close()
    await stage.both_end()


@behaviour
async def write_to_a_peer_that_has_closed(stage: Stage) -> None:
    """Writing on after the peer has closed ends with an error, once; no write raises."""
    near, far = await stage.pair(KeepsOpen)
    far.transport.close()
    await stage.until(lambda: "eof" in near.events)
    raised: list[Any] = []

    def lost() -> bool:
        raised.append(attempt(near.transport.write, b"x" * 100))
        return bool(near.ended)

    await stage.until(lost)
    stage.note("raised", [each for each in raised if each])
    stage.note("failed", near.events.pop()[1] in ("ConnectionResetError", "BrokenPipeError"))


@behaviour
async def both_close(stage: Stage) -> None:
    """Both ends close in the same turn."""
    near, far = await stage.pair()
    near.transport.close()
    far.transport.close()
    await stage.both_end()


@behaviour
async def writes_in_connection_made(stage: Stage) -> None:
    """Both ends write and close in connection_made()."""

    class Speaks(Traced):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transport.write(b"hello")
            transport.write_eof()

    await stage.pair(Speaks, Speaks)
    await stage.both_end()
