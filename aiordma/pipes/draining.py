"""What was closed and still delivers what it had accepted: it ends with its event loop at the latest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..wake.base import Waker

__all__ = ["Lingering"]

T = TypeVar("T")


class Lingering(Generic[T]):
    """Keeps closed pipes or channels alive until they have delivered.

    :param end: ends one at once, when its loop ends; it may take itself out meanwhile.
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
        """It has delivered; of one that was not added there is nothing to do."""
        kept = self._by_loop.get(waker)
        if kept is not None:
            kept.discard(one)

    def _end_all(self, waker: Waker) -> None:
        for one in list(self._by_loop[waker]):
            self._end(one)
        del self._by_loop[waker]
