"""Behaviours of reading: pauses, the protocol's own buffers, and the exchange of protocols."""

from __future__ import annotations

import asyncio
from typing import Any

from .stage import Buffered, KeepsOpen, Stage, Traced, attempt
from .table import behaviour


@behaviour
async def pause_and_resume(stage: Stage) -> None:
    """Nothing is delivered while reading is paused, everything afterwards."""
    near, far = await stage.pair()
    far.transport.pause_reading()
    near.transport.write(b"later")
    await stage.turns(30)
    stage.note("while paused", bytes(far.data))
    far.transport.resume_reading()
    await stage.until(lambda: far.data)


@behaviour
async def is_reading(stage: Stage) -> None:
    """is_reading() tells of pauses and of the end."""
    near, _ = await stage.pair()
    stage.note("open", near.transport.is_reading())
    near.transport.pause_reading()
    stage.note("paused", near.transport.is_reading())
    near.transport.resume_reading()
    stage.note("resumed", near.transport.is_reading())
    near.transport.close()
    stage.note("closed", near.transport.is_reading())
    await stage.both_end()


@behaviour
async def pause_twice(stage: Stage) -> None:
    """pause_reading() and resume_reading() may be repeated."""
    near, far = await stage.pair()
    stage.note("pause", [attempt(far.transport.pause_reading) for _ in range(2)])
    stage.note("resume", [attempt(far.transport.resume_reading) for _ in range(2)])
    near.transport.write(b"x")
    await stage.until(lambda: far.data)


@behaviour
async def pause_after_close(stage: Stage) -> None:
    """On a closed transport both do nothing."""
    near, _ = await stage.pair()
    near.transport.close()
    stage.note("pause", attempt(near.transport.pause_reading))
    stage.note("resume", attempt(near.transport.resume_reading))
    await stage.both_end()
    stage.note("pause at the end", attempt(near.transport.pause_reading))


@behaviour
async def eof_while_paused(stage: Stage) -> None:
    """Data and EOF of a peer that has closed wait for resume_reading()."""
    near, far = await stage.pair()
    far.transport.pause_reading()
    near.transport.write(b"last words")
    near.transport.close()
    await stage.until(lambda: near.ended)
    await stage.turns(30)
    stage.note("while paused", list(far.events))
    far.transport.resume_reading()
    await stage.both_end()


@behaviour
async def pause_in_data_received(stage: Stage) -> None:
    """A protocol that pauses in data_received() gets nothing more in that turn."""

    class Pauses(Traced):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.transport.pause_reading()

    near, far = await stage.pair(far=Pauses)
    near.transport.write(b"one")
    await stage.until(lambda: far.data == b"one")
    near.transport.write(b"two")
    await stage.turns(20)
    stage.note("paused with", bytes(far.data))
    far.transport.resume_reading()
    await stage.until(lambda: far.data == b"onetwo")


@behaviour
async def close_in_data_received(stage: Stage) -> None:
    """close() in data_received() ends the delivery."""

    class Closes(Traced):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.transport.close()

    near, _ = await stage.pair(far=Closes)
    near.transport.write(b"one")
    await stage.both_end()


@behaviour
async def a_buffered_protocol(stage: Stage) -> None:
    """A BufferedProtocol with a buffer smaller than the data gets all of it."""
    near, far = await stage.pair(Buffered, Buffered)
    near.transport.write(bytes(range(250)))
    await stage.until(lambda: len(far.data) == 250)
    far.transport.write(b"answer")
    far.transport.close()
    await stage.both_end()


@behaviour
async def an_empty_buffer(stage: Stage) -> None:
    """get_buffer() that returns an empty buffer ends the connection with a RuntimeError."""

    class Empty(Buffered):
        size = 0

    near, _ = await stage.pair(far=Empty)
    near.transport.write(b"x")
    await stage.both_end()


@behaviour
async def buffers_of_an_error(stage: Stage) -> None:
    """An error of get_buffer() ends the connection with it, and is reported."""

    class Fails(Buffered):
        def get_buffer(self, sizehint: int) -> bytearray:
            raise ZeroDivisionError

    near, _ = await stage.pair(far=Fails)
    near.transport.write(b"x")
    await stage.both_end()


@behaviour
async def an_error_of_buffer_updated(stage: Stage) -> None:
    """An error of buffer_updated() ends the connection with it, and is reported."""

    class Fails(Buffered):
        def buffer_updated(self, nbytes: int) -> None:
            raise ZeroDivisionError

    near, _ = await stage.pair(far=Fails)
    near.transport.write(b"x")
    await stage.both_end()


@behaviour
async def an_error_of_data_received(stage: Stage) -> None:
    """An error of data_received() ends the connection with it, and is reported."""

    class Fails(Traced):
        def data_received(self, data: bytes) -> None:
            raise ZeroDivisionError

    near, _ = await stage.pair(far=Fails)
    near.transport.write(b"x")
    await stage.both_end()


@behaviour
async def a_cancellation_in_data_received(stage: Stage) -> None:
    """A CancelledError of data_received() ends the connection, and not the loop."""

    class Fails(Traced):
        def data_received(self, data: bytes) -> None:
            raise asyncio.CancelledError

    near, _ = await stage.pair(far=Fails)
    near.transport.write(b"x")
    await stage.both_end()


@behaviour
async def an_error_of_eof_received(stage: Stage) -> None:
    """An error of eof_received() ends the connection with it, and is reported."""

    class Fails(Traced):
        def eof_received(self) -> None:
            raise ZeroDivisionError

    near, _ = await stage.pair(far=Fails)
    near.transport.write_eof()
    await stage.both_end()


@behaviour
async def an_error_of_connection_lost(stage: Stage) -> None:
    """An error of connection_lost() is reported."""

    class Fails(Traced):
        def connection_lost(self, exc: BaseException | None) -> None:
            super().connection_lost(exc)
            raise ZeroDivisionError

    near, _ = await stage.pair(near=Fails)
    near.transport.close()
    await stage.both_end()


@behaviour
async def an_error_of_connection_made(stage: Stage) -> None:
    """An error of the server's connection_made() is reported; the server goes on."""

    class Fails(Traced):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            raise ZeroDivisionError

    near, far = await stage.pair(far=Fails)
    near.transport.close()
    await stage.until(lambda: near.ended and "reported" in stage.trace)
    far.events.clear()  # whether it goes on is each loop's own
    far.transport.abort()
    far.ended = True


@behaviour
async def errors_of_flow_control(stage: Stage) -> None:
    """Errors of pause_writing() and resume_writing() are reported; the connection goes on."""

    class Fails(Traced):
        def pause_writing(self) -> None:
            raise ZeroDivisionError

        def resume_writing(self) -> None:
            raise ZeroDivisionError

    near, far = await stage.pair(near=Fails)
    far.transport.pause_reading()
    near.transport.write(bytes(8_000_000))
    await stage.until(lambda: "reported" in stage.trace)
    far.transport.resume_reading()
    await stage.until(lambda: len(far.data) == 8_000_000 and len(stage.trace["reported"]) == 2)
    far.events.clear()


@behaviour
async def another_protocol(stage: Stage) -> None:
    """set_protocol(): what comes later goes to the new protocol, get_protocol() returns it."""
    near, far = await stage.pair()
    near.transport.write(b"one")
    await stage.until(lambda: far.data == b"one")
    second = Traced(stage, "second")
    far.transport.set_protocol(second)
    stage.note("protocol", far.transport.get_protocol() is second)
    stage.protocols.remove(far)
    near.transport.write(b"two")
    near.transport.close()
    await stage.until(lambda: second.ended and near.ended)


@behaviour
async def another_protocol_while_paused(stage: Stage) -> None:
    """What arrived while reading was paused goes to the protocol that is set then."""
    near, far = await stage.pair()
    far.transport.pause_reading()
    near.transport.write(b"for the second")
    second = Traced(stage, "second")
    far.transport.set_protocol(second)
    stage.protocols.remove(far)
    far.transport.resume_reading()
    await stage.until(lambda: second.data)
    near.transport.close()
    await stage.until(lambda: second.ended and near.ended)


@behaviour
async def a_buffered_one_after_a_plain_one(stage: Stage) -> None:
    """A BufferedProtocol may follow a Protocol in data_received(), and the other way round."""

    class Changes(Traced):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.second = Buffered(self.stage, "second")
            self.transport.set_protocol(self.second)
            self.stage.protocols.remove(self)

    near, far = await stage.pair(far=Changes)
    near.transport.write(b"one")
    await stage.until(lambda: hasattr(far, "second"))
    near.transport.write(b"two")
    await stage.until(lambda: far.second.data)
    third = Traced(stage, "third")
    far.transport.set_protocol(third)
    stage.protocols.remove(far.second)
    near.transport.write(b"three")
    near.transport.close()
    await stage.until(lambda: third.ended and near.ended)


@behaviour
async def what_came_before_the_end_during_a_pause(stage: Stage) -> None:
    """What the peer had sent is delivered after the pause, and its end behind it."""
    near, far = await stage.pair(KeepsOpen)
    near.transport.pause_reading()
    far.transport.write(b"too much")
    far.transport.close()
    await stage.until(lambda: far.ended)
    near.transport.resume_reading()
    await stage.until(lambda: "eof" in near.events)


@behaviour
async def data_is_bytes(stage: Stage) -> None:
    """data_received() gets bytes, which it may keep."""

    class Types(Traced):
        def data_received(self, data: bytes) -> None:
            self.stage.note("type", type(data).__name__)
            super().data_received(data)

    near, far = await stage.pair(far=Types)
    near.transport.write(b"x")
    await stage.until(lambda: far.data)


@behaviour
async def calls_scheduled_in_data_received_come_before_eof(stage: Stage) -> None:
    """EOF does not come in the callback of the last data."""

    class Schedules(Traced):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.stage.loop.call_soon(self.events.append, "scheduled")

    near, _ = await stage.pair(far=Schedules)
    near.transport.write(b"data")
    near.transport.close()
    await stage.both_end()
