"""Event loops that run what is ready in an order drawn from a seed: ``pytest --orders SEED``.

A test that passes in one order of events may fail in another, and it takes a busy machine to see that order.
Only what a loop promises nothing about changes: in which order tasks run that can run at the same time, in
which order ready descriptors are seen (the device's completions among them), and whether a task or a
descriptor has its turn in this turn of the loop or in the next one. Callbacks keep their order, as asyncio
promises, and no task comes before a callback that was there before it.

A seed and a test's name determine what is drawn. When the kernel and the device's thread are done is not
drawn: a test that uses them gets the same draws again, and may yet need some runs until it fails again.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from typing import Any

import trio

from aiordma.testing import VirtualLoop
from tests import virtual
from tests.loops import LOOPS

#: How often a task, or a descriptor, has to wait for the next turn although it could have this one.
_HELD = 0.15


class _Selector:
    """Tells of ready descriptors in any order, and of some of them in the next turn."""

    def __init__(self, selector: Any, draw: random.Random) -> None:
        self._selector = selector
        self._draw = draw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selector, name)

    def select(self, timeout: float | None = None) -> list[Any]:
        found: list[Any] = self._selector.select(timeout)
        self._draw.shuffle(found)
        told = [each for each in found if self._draw.random() >= _HELD]
        return told or found  # they stay ready: the next select() returns at once


class _InAnyOrder(asyncio.SelectorEventLoop):
    _ready: deque[Any]
    _selector: Any

    def draw_orders(self, seed: str) -> None:
        """:param seed: what the orders are drawn from."""
        self._draw = random.Random(seed)
        self._selector = _Selector(self._selector, self._draw)

    def _run_once(self) -> None:
        held = self._arrange() if len(self._ready) > 1 else []
        try:
            super()._run_once()  # type: ignore[misc]
        finally:  # KeyboardInterrupt comes through here, and the loop runs again to end its tasks
            self._ready.extendleft(reversed(held))

    def _arrange(self) -> list[Any]:
        """Tasks' steps that follow each other change places. Some are taken out: what is returned."""
        queue: list[Any] = []
        held: list[Any] = []
        for steps, handles in itertools.groupby(list(self._ready), _is_step):
            run = list(handles)
            if steps:
                self._draw.shuffle(run)
                held += [step for step in run if self._draw.random() < _HELD]
            queue += run
        if len(held) == len(queue):
            held.pop()
        left_out = set(map(id, held))
        # In place: aiordma looks at this queue, too.
        self._ready.clear()
        self._ready.extend(handle for handle in queue if id(handle) not in left_out)
        return held


def _is_step(handle: Any) -> bool:
    """Whether a callback is the next step of a task."""
    return isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)


class InAnyOrder(_InAnyOrder):
    """In real time."""

    def __init__(self) -> None:
        super().__init__()
        self.draw_orders(_of_test[0])


class VirtualInAnyOrder(_InAnyOrder, VirtualLoop):
    """In virtual time.

    :param grace: in seconds, as ``VirtualLoop`` takes it.
    """

    def __init__(self, grace: float) -> None:
        super().__init__(grace)
        self.draw_orders(_of_test[0])


#: The seed of the test that runs.
_of_test = [""]


def install() -> None:
    """Tests that run on asyncio's loop run on one in any order from now on."""
    LOOPS["asyncio"] = ("asyncio", {"loop_factory": InAnyOrder})
    virtual.new_asyncio_loop = VirtualInAnyOrder
    core: Any = trio._core._run
    core._ALLOW_DETERMINISTIC_SCHEDULING = True  # trio draws anyway, and from here on from a seed


def begin_test(seed: int, test: str) -> None:
    _of_test[0] = f"{seed}:{test}"
    core: Any = trio._core._run
    core._r.seed(_of_test[0])
