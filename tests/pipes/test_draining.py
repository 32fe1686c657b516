"""What is closed and still delivers is kept, by event loop, and ends with it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import anyio
import pytest

from aiordma import wake
from aiordma.wake.draining import Draining
from tests.health import collected


class One:
    def __init__(self) -> None:
        self.ended = 0


def end(one: One) -> None:
    one.ended += 1


def test_what_has_not_delivered_ends_with_its_loop(anyio_backend: Any) -> None:
    kept = Draining[One](end)
    first, second, delivered = One(), One(), One()

    async def main(one: One) -> None:
        waker = wake.current()
        kept.discard(waker, delivered)  # that it was never added does no harm
        kept.add(waker, one)
        kept.add(waker, delivered)
        kept.discard(waker, delivered)
        assert not one.ended

    for one, ended in ((first, (1, 0, 0)), (second, (1, 1, 0))):
        anyio.run(main, one, backend=anyio_backend[0], backend_options=anyio_backend[1])
        assert (first.ended, second.ended, delivered.ended) == ended


def test_nobody_else_needs_to_hold_it(anyio_backend: Any) -> None:
    kept = Draining[One](end)

    async def main() -> weakref.ref[One]:
        one = One()
        kept.add(wake.current(), one)
        held = weakref.ref(one)
        del one
        gc.collect()
        assert held() is not None
        return held

    assert collected(anyio.run(main, backend=anyio_backend[0], backend_options=anyio_backend[1]))


@pytest.mark.parametrize("step", ["push", "end"])
def test_one_that_fails_stops_no_other(
    step: str, anyio_backend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What ends is a user's connection, whose callbacks may raise anything."""
    pushed: list[One] = []

    def push(one: One) -> bool:
        pushed.append(one)
        if step == "push":
            raise ZeroDivisionError
        return True

    def end_and_fail(one: One) -> None:
        one.ended += 1
        if step == "end":
            raise ZeroDivisionError

    kept = Draining[One](end_and_fail, push)
    ones = [One(), One(), One()]

    async def main() -> None:
        for one in ones:
            kept.add(wake.current(), one)

    anyio.run(main, backend=anyio_backend[0], backend_options=anyio_backend[1])
    assert [one.ended for one in ones] == [1, 1, 1]
    assert set(pushed) == set(ones)
    assert caplog.text.count("ZeroDivisionError") >= 3
    caplog.clear()
