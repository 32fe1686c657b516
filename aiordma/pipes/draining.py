"""Pipes that are closed and still deliver what they accepted, until their event loop ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..wake.base import Waker

__all__ = ["Draining"]

T = TypeVar("T")


class Draining(Generic[T]):
    """Keeps closed pipes or channels alive until they have delivered.

    :param end: ends one at once, when its loop ends. It may call :meth:`discard`.
    """

    def __init__(self, end: Callable[[T], None]) -> None:
        self._end = end

    def add(self, waker: Waker, one: T) -> None:
        kept = waker.locals.get(self)
        if kept is None:
            # With the loop, not here: it must not keep a loop that was dropped.
            kept = waker.locals[self] = set()
            waker.at_loop_end(lambda: self._end_all(waker))
        kept.add(one)

    def discard(self, waker: Waker, one: T) -> None:
        """It has delivered. Nothing happens if it was not added."""
        kept = waker.locals.get(self)
        if kept is not None:
            kept.discard(one)

    def _end_all(self, waker: Waker) -> None:
        for one in list(waker.locals[self]):
            self._end(one)
        del waker.locals[self]
