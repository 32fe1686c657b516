"""Watching whether the event loop comes by in time, also while its engine sleeps and has asked for nothing.

Between the moment in which the engine asks for its turn and that turn, the poller takes the time by itself.
An engine that sleeps is woken by the device, which does not say when it first tried. So a timer runs beside
it while slow polls are watched, and how late it comes is how late the loop serves the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._cq import CompletionPoller
    from ..wake.base import Handle, Waker

#: Seconds between two timers: a quarter of the threshold, within these limits. A loop that is blocked for the
#: threshold and a quarter more, and for the grain, is always seen.
_LEAST_S, _MOST_S = 0.001, 0.25
#: The grain of timers: asyncio and uvloop may come so much late, in nanoseconds, when nothing blocks them.
_GRAIN_NS = 1_000_000


class LoopWatch:
    """Tells the poller of one engine when its loop comes late. Without a threshold it costs nothing."""

    def __init__(self, waker: Waker, poller: CompletionPoller) -> None:
        self._waker, self._poller = waker, poller
        self._period = 0.0  # 0: no timer
        self._due = 0
        self._timer: Handle | None = None
        self._stopped = False

    @property
    def running(self) -> bool:
        """Whether it wakes the event loop."""
        return self._timer is not None

    def watch(self, threshold_ns: int, on_slow_poll: Callable[[int, str], object]) -> None:
        """Call ``on_slow_poll(nanoseconds, where)`` when the loop comes later than that; 0: never. From any
        thread: the process's settings may be changed in one, and hold for the loops of all."""
        self._poller.watch_polls(threshold_ns, on_slow_poll)
        self._period = 0.0
        if threshold_ns and self._waker.clock.real:
            self._period = min(max(threshold_ns / 4e9, _LEAST_S), _MOST_S)
        self._waker.call_from_anywhere(self._begin_anew)

    def stop(self) -> None:
        """No timer any more. Idempotent."""
        self._stopped = True
        self._cancel()

    def _begin_anew(self) -> None:
        self._cancel()
        if self._period and not self._stopped:
            self._begin()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        self._due = self._waker.clock.now_ns() + round(self._period * 1e9) + _GRAIN_NS
        self._timer = self._waker.call_at(self._waker.now() + self._period, self._come_by)

    def _come_by(self) -> None:
        self._poller.came_by(self._due)
        self._begin_anew()
