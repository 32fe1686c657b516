"""The software device of this process in the time of a loop, whose clock a test moves."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

_NEVER = 2**64 - 1


class DeviceTime:
    """
    :param now: the loop's time, in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._clock: Callable[[int], int] | None = None

    def due(self) -> float:
        """The device goes by the loop's time from now on, and what is due in it happens. Returns the time at
        which something is due next; infinity: nothing, or this process has not loaded the device yet."""
        if self._clock is None:
            self._clock = _find()
            if self._clock is None:
                return math.inf
        next_ns = self._clock(_in_ns(self._now()))
        if next_ns == _NEVER:
            return math.inf
        at = next_ns / 1e9
        while _in_ns(at) < next_ns:  # a float has no room for the nanoseconds of years
            at = math.nextafter(at, math.inf)
        return at

    def release(self) -> None:
        """The device goes by the system's clock again."""
        if self._clock is not None:
            self._clock(0)
            self._clock = None


def _in_ns(seconds: float) -> int:
    """The device takes 0 for its own clock, and a loop's time may be 0."""
    return math.ceil(seconds * 1e9) + 1


def _find() -> Any:
    try:
        clock = ctypes.CDLL(None).softdev_clock
    except AttributeError:
        return None
    clock.argtypes = [ctypes.c_uint64]
    clock.restype = ctypes.c_uint64
    return clock
