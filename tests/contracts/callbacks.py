"""Behaviours of callbacks: what protocols do inside them, and what follows from errors there."""

from __future__ import annotations

import sys
from typing import Any

from .stage import Buffered, Stage, Traced, attempt, outcome
from .table import behaviour


@behaviour
async def close_in_connection_made(stage: Stage) -> None:
    """A server that closes at once: an end without an error at both ends."""

    class Closes(Traced):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transport.close()

    await stage.connect(stage.near(), await stage.listen(stage.far(Closes)))
    await stage.until(lambda: stage.made("far"))
    await stage.both_end()


@behaviour
async def an_answer_in_connection_made(stage: Stage) -> None:
    """A server that greets and closes: the greeting, EOF, an end."""

    class Greets(Traced):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transport.writelines([b"220 ", b"hello"])
            transport.close()

    await stage.connect(stage.near(), await stage.listen(stage.far(Greets)))
    await stage.until(lambda: stage.made("far"))
    await stage.both_end()


@behaviour
async def a_pause_in_connection_made(stage: Stage) -> None:
    """Reading that is paused in connection_made() begins with resume_reading()."""

    class Pauses(Traced):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transport.pause_reading()

    near, far = await stage.pair(far=Pauses)
    near.transport.write(b"waits")
    stage.note("reading", far.transport.is_reading())
    if sys.version_info >= (3, 12):  # asyncio of before began to read all the same
        await stage.turns(30)
        stage.note("while paused", bytes(far.data))
    far.transport.resume_reading()
    await stage.until(lambda: far.data)


@behaviour
async def another_protocol_in_connection_made(stage: Stage) -> None:
    """set_protocol() in connection_made(): the new one gets everything, but no connection_made()."""
    second = Traced(stage, "second")

    class Hands(Traced):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            second.transport = transport
            transport.set_protocol(second)

    near, far = await stage.pair(far=Hands)
    stage.protocols.remove(far)
    near.transport.write(b"for the second")
    near.transport.close()
    await stage.until(lambda: second.ended and near.ended)


@behaviour
async def an_answer_in_eof_received(stage: Stage) -> None:
    """write() in eof_received() reaches a peer that has half-closed, although None closes then."""

    class Answers(Traced):
        def eof_received(self) -> None:
            super().eof_received()
            self.transport.write(b"answer")

    near, _ = await stage.pair(far=Answers)
    near.transport.write(b"question")
    near.transport.write_eof()
    await stage.both_end()


@behaviour
async def close_in_eof_received(stage: Stage) -> None:
    """close() in eof_received() that returns true closes all the same."""

    class Closes(Traced):
        def eof_received(self) -> bool:
            super().eof_received()
            self.transport.close()
            return True

    near, _ = await stage.pair(far=Closes)
    near.transport.write_eof()
    await stage.both_end()


@behaviour
async def calls_in_connection_lost(stage: Stage) -> None:
    """In connection_lost(), every method of the transport still answers."""

    class Calls(Traced):
        def connection_lost(self, exc: BaseException | None) -> None:
            for name in ("close", "abort", "is_closing", "pause_reading", "resume_reading", "write_eof"):
                self.stage.note(name, attempt(getattr(self.transport, name)))
            self.stage.note("write", attempt(self.transport.write, b"x"))
            self.stage.note("writelines", attempt(self.transport.writelines, [b"x"]))
            self.stage.note("protocol", self.transport.get_protocol() is self)
            self.stage.note("buffer", self.transport.get_write_buffer_size())
            super().connection_lost(exc)

    near, _ = await stage.pair(Calls)
    near.transport.close()
    await stage.both_end()


@behaviour
async def an_echo_that_closes(stage: Stage) -> None:
    """write() and close() in data_received(): everything that was answered arrives."""

    class Echoes(Traced):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.transport.write(data.upper())
            if b"\n" in data:
                self.transport.close()

    near, _ = await stage.pair(far=Echoes)
    near.transport.write(b"one line\n")
    await stage.both_end()


@behaviour
async def a_conversation(stage: Stage) -> None:
    """A hundred questions and answers, each written in the callback of the other."""

    class Counts(Traced):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if len(self.data) < 100:
                self.transport.write(data)
            else:
                self.transport.close()

    near, _ = await stage.pair(Counts, Counts)
    near.transport.write(b"x")
    await stage.until(lambda: near.ended)
    await stage.both_end()


@behaviour
async def abort_in_data_received(stage: Stage) -> None:
    """abort() in data_received(): connection_lost(None), and no callback between."""

    class Aborts(Traced):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.transport.abort()
            self.stage.note("lost inside", self.ended)

    near, far = await stage.pair(far=Aborts)
    near.transport.write(b"x")
    await stage.both_end()
    stage.note("far", list(far.events))
    near.events.clear()  # an EOF or a reset, by what was in the kernel


@behaviour
async def a_pause_in_get_buffer(stage: Stage) -> None:
    """A BufferedProtocol that pauses in buffer_updated() gets nothing more until it resumes."""

    class Pauses(Buffered):
        size = 4

        def buffer_updated(self, nbytes: int) -> None:
            super().buffer_updated(nbytes)
            self.transport.pause_reading()

    near, far = await stage.pair(far=Pauses)
    near.transport.write(b"0123456789")
    await stage.until(lambda: far.data)
    await stage.turns(20)
    stage.note("paused with", bytes(far.data))
    while len(far.data) < 10:
        far.transport.resume_reading()
        await stage.turns()


@behaviour
async def close_in_buffer_updated(stage: Stage) -> None:
    """A BufferedProtocol that closes in buffer_updated() gets nothing more."""

    class Closes(Buffered):
        size = 4

        def buffer_updated(self, nbytes: int) -> None:
            super().buffer_updated(nbytes)
            self.transport.close()

    near, far = await stage.pair(far=Closes)
    near.transport.write(b"0123456789")
    await stage.until(lambda: far.ended)
    stage.note("got", bytes(far.data))
    del stage.trace["near"]  # an EOF or a reset


@behaviour
async def a_buffer_that_is_a_view(stage: Stage) -> None:
    """get_buffer() may return a view of a part."""

    class Views(Buffered):
        def get_buffer(self, sizehint: int) -> Any:
            return memoryview(self.buffer)[:3]

    near, far = await stage.pair(far=Views)
    near.transport.write(b"in threes")
    near.transport.close()
    await stage.both_end()
    stage.note("rest", bytes(far.buffer[3:6]))


@behaviour
async def a_buffer_that_cannot_be_written(stage: Stage) -> None:
    """get_buffer() that returns bytes ends the connection, and is reported."""

    class Fixed(Buffered):
        def get_buffer(self, sizehint: int) -> Any:
            return b"fixed"

    near, _ = await stage.pair(far=Fixed)
    near.transport.write(b"x")
    await stage.both_end()


@behaviour
async def eof_of_a_buffered_protocol(stage: Stage) -> None:
    """eof_received() of a BufferedProtocol that returns true keeps the transport open."""

    class Keeps(Buffered):
        def eof_received(self) -> bool:
            super().eof_received()
            return True

    near, far = await stage.pair(far=Keeps)
    near.transport.write(b"question")
    near.transport.write_eof()
    await stage.until(lambda: "eof" in far.events)
    far.transport.write(b"answer")
    far.transport.close()
    await stage.both_end()


@behaviour
async def an_error_of_the_clients_connection_made(stage: Stage) -> None:
    """An error of the client's connection_made() is reported or raised, as the loop has it."""

    class Fails(Traced):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            raise ZeroDivisionError

    port = await stage.listen()
    made = await outcome(stage.client.create_connection(stage.near(Fails), "127.0.0.1", port))
    stage.note("made", made if isinstance(made, str) else "connected")
    near = stage.made("near")[0]
    near.transport.close()
    await stage.until(lambda: ("lost", None) in stage.trace.get("far", ()))
    stage.trace.pop("near")
    near.ended = True
