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
        self._by_loop: dict[Waker, set[T]] = {}

    def add(self, waker: Waker, one: T) -> None:
        kept = self._by_loop.get(waker)
        if kept is None:
            kept = self._by_loop[waker] = set()
            waker.at_loop_end(lambda: self._end_all(waker))
        kept.add(one)

    def discard(self, waker: Waker, one: T) -> None:
        """It has delivered. Nothing happens if it was not added."""
        kept = self._by_loop.get(waker)
        if kept is not None:
            kept.discard(one)

    def _end_all(self, waker: Waker) -> None:
        for one in list(self._by_loop[waker]):
            self._end(one)
        del self._by_loop[waker]
