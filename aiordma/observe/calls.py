"""Calls by method, of the connections of an event loop that have ended: those that go on are counted where
their calls are (``aiordma.proto.calls``), at the cost of an addition."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..wake.base import Waker

#: Methods that are counted by themselves: names come from peers, too.
_METHODS = 256
_KEY = "calls"
_OTHERS = "(others)"

Counted = tuple[str, int, int, int]
"""Name of the method, calls, those of them without a result, and those in flight."""


def past(waker: Waker) -> dict[tuple[str, str], tuple[int, int]]:
    """By side and method: calls, and those of them without a result."""
    found: dict[tuple[str, str], tuple[int, int]] = waker.locals.setdefault(_KEY, {})
    return found


def fold(waker: Waker, side: str, counts: Iterable[Counted]) -> None:
    """A connection has ended: keep what it has counted."""
    known = past(waker)
    for name, calls, errors, _ in counts:
        key = (side, name)
        if key not in known and len(known) >= _METHODS:
            key = (side, _OTHERS)
        before = known.get(key, (0, 0))
        known[key] = before[0] + calls, before[1] + errors
