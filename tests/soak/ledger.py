"""What one process of the soak has done, by kind of work, and what went wrong."""

from __future__ import annotations

import contextlib
import os
import tempfile
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import anyio

from tests import hang
from tests.soak import inside

#: A process that reports more has one fault many times.
MOST_FAULTS = 20
#: Longest text of one.
MOST_TEXT = 6000


class Hang(Exception):
    """A piece of work took longer than anybody's patience. It was reported, and cancelled."""


class Piece:
    """A piece of work that is being done."""

    def __init__(self, kind: str, deadline: float) -> None:
        self.kind = kind
        self.deadline = deadline
        self.scope = anyio.CancelScope()
        self.overdue = False
        #: bytes that it has moved
        self.size = 0


class Ledger:
    """Counts pieces of work, and keeps the faults until they are reported.

    :param patience: seconds that one piece may take.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.done: Counter[str] = Counter()
        self.moved = 0
        #: connections that are open now
        self.live = 0
        #: connections that are counted elsewhere
        self.also_live: Callable[[], int] = lambda: 0
        #: the long-lived clients are told to end, in the middle of their work
        self.ending = False
        self._faults: list[str] = []
        self._fault_count = 0
        self._running: set[Piece] = set()

    # ---- work

    @contextlib.contextmanager
    def piece(self, kind: str) -> Iterator[Piece]:
        """Around one piece of work, which counts if it ends well.

        :raises Hang: it took too long.
        """
        piece = Piece(kind, anyio.current_time() + self.patience)
        self._running.add(piece)
        try:
            with piece.scope:
                yield piece
        finally:
            self._running.discard(piece)
        if piece.overdue:
            raise Hang(kind)
        self.done[kind] += 1
        self.moved += piece.size

    async def again_and_again(
        self, kind: str, random: Random, pause: float, work: Callable[[], Awaitable[object]]
    ) -> None:
        """Do ``work`` for ever, with random pauses of ``pause`` seconds on average; note what it raises."""
        while True:
            try:
                await work()
            except Exception as error:
                self.fault(kind, error)
                await anyio.sleep(1)
            await rest(random, pause)

    @contextlib.contextmanager
    def noting(self, kind: str, *expected: type[BaseException]) -> Iterator[None]:
        """Around something that may raise ``expected``; anything else is a fault, and does not go further."""
        try:
            yield
        except expected:
            pass
        except Exception as error:
            self.fault(kind, error)

    # ---- faults

    def fault(self, kind: str, error: Exception | str) -> None:
        if isinstance(error, ExceptionGroup):
            _, rest_of_it = error.split(Hang)
            if rest_of_it is None:
                return
        if isinstance(error, Hang):
            return  # reported by the watch
        text = error if isinstance(error, str) else "".join(traceback.format_exception(error))
        self._fault_count += 1
        if self._fault_count <= MOST_FAULTS:
            if len(text) > MOST_TEXT:
                # The end of a traceback says most.
                text = f"{text[: MOST_TEXT // 4]}\n[...]\n{text[-MOST_TEXT * 3 // 4 :]}"
            self._faults.append(f"{kind}: {text}")

    async def watch(self) -> None:
        """Report and cancel what hangs, for ever."""
        while True:
            await anyio.sleep(0.5)
            now = anyio.current_time()
            for piece in [piece for piece in self._running if piece.deadline < now and not piece.overdue]:
                piece.overdue = True
                self.fault(piece.kind, f"hang: not done after {self.patience:g} s\n{waiting()}")
                piece.scope.cancel()

    # ---- reports

    def report(self) -> dict[str, Any]:
        """Counters since the beginning, and faults since the last report."""
        faults, self._faults = self._faults, []
        counters = {"done": dict(self.done), "moved": self.moved, "live": self.live + self.also_live()}
        return {**counters, "faults": faults, "ending": self.ending, "inside": inside.sample()}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """While a connection is open."""
        self.live += 1
        try:
            yield
        finally:
            self.live -= 1


async def rest(random: Random, mean: float) -> None:
    """A pause of ``mean`` seconds on average, and never of more than five times that."""
    await anyio.sleep(min(random.expovariate(1 / mean), 5 * mean))


def waiting() -> str:
    """What all tasks wait for, in the project's own lines, and the engine's counters. Blocks for a moment."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "report")
        hang.report(path, False)
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if "site-packages" not in line)
