"""The clock of an event loop: what runs in the loop takes the time from it and from nowhere else.

That is what makes time testable: in a loop whose time is a test's (``aiordma.testing.VirtualLoop``, trio's
``MockClock``), timers, budgets and ages all go by the test's clock. Busy polling is off there, since a clock
that stands still cannot end it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

try:
    from ._clock import Clock, GivenClock
except ImportError:
    # Built for another Python. Connections run on TCP then, and say so: they must get that far.
    from time import monotonic_ns

    class Clock:  # type: ignore[no-redef]
        real = True

        def now_ns(self) -> int:
            return monotonic_ns()

        def hold(self) -> Callable[[], object]:
            return lambda: None

    class GivenClock(Clock):  # type: ignore[no-redef]
        real = False

        def __init__(self, read: Callable[[], float], hold: Any = None) -> None:
            self._read = read
            self.hold = hold or self.hold  # type: ignore[method-assign]

        def now_ns(self) -> int:
            return int(self._read() * 1e9)


if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["REAL", "Clock", "of_asyncio_loop", "of_trio_run", "periodic"]

#: The system's.
REAL = Clock()


def periodic(callback: Callable[[Any], None]) -> Callable[[Any], None]:
    """Marks a timer's callback that comes again and again, and seldom sets anything off: a loop whose time
    jumps need not wait after each of them for what the kernel might do (``aiordma.testing.VirtualLoop``)."""
    callback.periodic = True  # type: ignore[attr-defined]
    return callback


def of_asyncio_loop(loop: asyncio.AbstractEventLoop) -> Clock:
    """The system's clock, unless the loop says that its own time is another one (``virtual_time = True``)."""
    if not getattr(loop, "virtual_time", False):
        return REAL
    return GivenClock(loop.time, getattr(loop, "hold_time", None))


def of_trio_run(clock: Any) -> Clock:
    """:param clock: ``trio.lowlevel.current_clock()``."""
    testing = sys.modules.get("trio.testing")
    mocked = testing is not None and isinstance(clock, testing.MockClock)
    return GivenClock(clock.current_time) if mocked else REAL
