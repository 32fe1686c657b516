"""Behaviours of callbacks that raise what is no `Exception`: it ends no connection but their own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from .stage import Buffered, Stage, Traced
from .table import behaviour

if TYPE_CHECKING:
    from collections.abc import Callable


class Odd(BaseException):
    """A program's own."""


KINDS: tuple[type[BaseException], ...] = (asyncio.CancelledError, GeneratorExit, Odd)
#: More than any carrier keeps for a peer that does not read.
MUCH = bytes(8 << 20)


def failing(base: type[Any], callback: str, error: type[BaseException]) -> type[Any]:
    """A protocol whose callback does what it does, and the first time raises then."""

    class Fails(base):  # type: ignore[misc]
        failed = 0

    def fails(self: Any, *args: Any) -> Any:
        result = getattr(super(Fails, self), callback)(*args)
        self.failed += 1
        if self.failed == 1:
            raise error
        return result

    setattr(Fails, callback, fails)
    return Fails


def send(near: Any, far: Any) -> None:
    near.transport.write(b"x")


def fill(near: Any, far: Any) -> None:
    near.transport.pause_reading()
    far.transport.write(MUCH)


#: By callback: the kind of protocol, and what is done for the callback to come.
CALLBACKS: dict[str, tuple[type[Any], Callable[[Any, Any], None]]] = {
    "connection_made": (Traced, lambda near, far: None),
    "data_received": (Traced, send),
    "get_buffer": (Buffered, send),
    "buffer_updated": (Buffered, send),
    "eof_received": (Traced, lambda near, far: near.transport.write_eof()),
    "pause_writing": (Traced, fill),
    "resume_writing": (Traced, lambda near, far: far.transport.write(MUCH)),
    "connection_lost": (Traced, lambda near, far: far.transport.close()),
}


async def play(stage: Stage, callback: str) -> None:
    """A far end whose callback raises each of the kinds, and a connection beside it that goes on."""
    base, act = CALLBACKS[callback]
    witness, other = await stage.pair()
    for error in KINDS:
        near, far = await stage.pair(far=failing(base, callback, error))
        act(near, far)
        await stage.until(lambda: far.failed)  # noqa: B023
        await stage.turns()
        stage.note(error.__name__, [event for event in far.events if not isinstance(event, list)])
        stage.note("closing", far.transport.is_closing())
        stage.note("reported", stage.trace.pop("reported", []))
        far.transport.abort()
        near.transport.abort()
        await stage.until(lambda: near.ended and far.ended)  # noqa: B023
        stage.trace.pop("reported", None)
        await goes_on(stage, witness, other)
        near.events.clear()  # an EOF or a reset
        far.events.clear()


async def goes_on(stage: Stage, witness: Any, other: Any) -> None:
    """Bytes arrive as ever."""
    other.data.clear()
    witness.transport.write(b"as ever")
    await stage.until(lambda: other.data == b"as ever")


@behaviour
async def what_escapes_from_connection_made(stage: Stage) -> None:
    """connection_made() of a server's protocol: reported, and the connection stays."""
    await play(stage, "connection_made")


@behaviour
async def what_escapes_from_data_received(stage: Stage) -> None:
    """data_received(): reported, and the connection ends with it."""
    await play(stage, "data_received")


@behaviour
async def what_escapes_from_get_buffer(stage: Stage) -> None:
    """get_buffer(): reported, and the connection ends with it."""
    await play(stage, "get_buffer")


@behaviour
async def what_escapes_from_buffer_updated(stage: Stage) -> None:
    """buffer_updated(): reported, and the connection ends with it."""
    await play(stage, "buffer_updated")


@behaviour
async def what_escapes_from_eof_received(stage: Stage) -> None:
    """eof_received(): reported, and the connection ends with it."""
    await play(stage, "eof_received")


@behaviour
async def what_escapes_from_pause_writing(stage: Stage) -> None:
    """pause_writing(): reported, and nothing else; write() does not raise it."""
    await play(stage, "pause_writing")


@behaviour
async def what_escapes_from_resume_writing(stage: Stage) -> None:
    """resume_writing(): reported, and nothing else."""
    await play(stage, "resume_writing")


@behaviour
async def what_escapes_from_connection_lost(stage: Stage) -> None:
    """connection_lost(): reported."""
    await play(stage, "connection_lost")
