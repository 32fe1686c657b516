"""By how much the timer of a loop's page came late: its endpoint notes it, and ``aiordma stat`` shows it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from .page import BEAT_SECONDS

if TYPE_CHECKING:
    from ..wake.base import Waker

_KEY = "admin: late timers"
#: Of one minute.
_BEATS = round(60 / BEAT_SECONDS)


def late_timers(waker: Waker) -> deque[tuple[float, float]]:
    """Of the last minute, each: because the loop was blocked, and for want of a processor."""
    found: deque[tuple[float, float]] = waker.locals.setdefault(_KEY, deque(maxlen=_BEATS))
    return found
