# cython: annotation_typing=False
"""What an operation asks before it completes at once: have others had their turn, and is its task cancelled?

asyncio's waker is one of these. On trio each operation is a full checkpoint, so nothing is asked there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import SHARE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import clock as clocks
    from ._cancelled import CancelCheck

_SHARE_NS = int(SHARE_SECONDS * 1e9)


class Turns:
    """Of one loop.

    :param operations: how many of them may complete before one yields; 0: each one yields.
    """

    share: int
    clock: clocks.Clock

    def __init__(self, clock: clocks.Clock, operations: int) -> None:
        self.clock = clock
        self._whole_share = operations
        self._check: CancelCheck | None = None
        self._ask: Callable[[], bool] | None = None
        self.renew_share()

    def renew_share(self) -> None:
        self.share = self._whole_share
        self._share_ends = self.clock.now_ns() + _SHARE_NS

    def share_overdue(self) -> bool:
        return self.clock.now_ns() > self._share_ends

    def may_begin(self) -> bool:
        return self.share > 0 and not self.is_cancelled()

    def count(self, more: int) -> None:
        self.share -= 1 + more

    def count_polled(self, more: int) -> None:
        share = self.share - 1 - more
        self.share = share if share & 7 or not self.share_overdue() else 0

    def learn_of_cancellation(self, check: CancelCheck | None, ask: Callable[[], bool]) -> None:
        """:param ask: where there is no ``check``, which is faster."""
        self._check, self._ask = check, ask

    def is_cancelled(self) -> bool:
        """As :meth:`cancel_requested`, from compiled code."""
        if self._check is not None:
            return self._check.requested()
        return self._ask()  # type: ignore[misc]

    def cancel_requested(self) -> bool:
        return self.is_cancelled()
