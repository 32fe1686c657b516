"""Streams under faults: both directions at once, and the outcome of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from aiordma.streams.stream import RdmaStream

#: A hang is a failure, and reports itself.
PATIENCE = 20


@dataclass
class Outcome:
    """The outcome of one direction of a connection."""

    sent: bytes
    got: bytearray = field(default_factory=bytearray)
    #: The receiver saw the end of the data.
    ended: bool = False
    errors: list[BaseException] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return self.ended and self.got == self.sent

    def causes(self) -> list[BaseException | None]:
        return [error.__cause__ for error in self.errors]


async def write(stream: RdmaStream, outcome: Outcome, random: Random) -> None:
    try:
        at = 0
        while at < len(outcome.sent):
            size = random.choice((1, 44, 700, 5000, 40_000))
            await stream.send(outcome.sent[at : at + size])
            at += size
        await stream.send_eof()
    except anyio.BrokenResourceError as error:
        outcome.errors.append(error)
        # A program that gives up closes, which informs its peer.
        await stream.aclose()


async def read(stream: RdmaStream, outcome: Outcome, random: Random) -> None:
    try:
        while True:
            outcome.got += await stream.receive(random.choice((1, 100, 5000, 65536)))
    except anyio.EndOfStream:
        outcome.ended = True
    except anyio.ClosedResourceError:
        pass  # the writer of this end has given up, and reports the reason
    except anyio.BrokenResourceError as error:
        outcome.errors.append(error)
        await stream.aclose()


async def exchange(one: RdmaStream, other: RdmaStream, size: int, seed: int = 0) -> tuple[Outcome, Outcome]:
    """Send ``size`` random bytes each way and read until the end. The received data is always a prefix of the
    data sent; the caller judges the rest."""
    random = Random(seed)
    forth, back = Outcome(random.randbytes(size)), Outcome(random.randbytes(size))
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            for outcome, source, sink in ((forth, one, other), (back, other, one)):
                tasks.start_soon(write_quietly, source, outcome, Random(random.random()))
                tasks.start_soon(read, sink, outcome, Random(random.random()))
        for stream in (one, other):
            await stream.aclose()
    return forth, back


async def write_quietly(stream: RdmaStream, outcome: Outcome, random: Random) -> None:
    try:
        await write(stream, outcome, random)
    except anyio.ClosedResourceError:
        pass  # the reader of this end has given up, and reports the reason
