# cython: annotation_typing=False
"""The deadlines of calls (``calls.py``), without a timer for each.

Compiled as well (``deadlines.pxd``), on the rules of ``cursor.py``.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .call import Call


class Deadlines:
    """The deadlines of calls, earliest first. Calls that are over stay until they take too much room:
    there are never more of them than of the others."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Call]] = []
        self._count = 0
        self._compact_at = 64

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, call: Call, deadline: float) -> bool:
        """Watch ``call``; True when its deadline is now the earliest."""
        call.deadline = deadline
        heap = self._heap
        if len(heap) >= self._compact_at:
            self._heap = heap = [entry for entry in heap if not entry[2].closed and not entry[2].cancelled]
            heapify(heap)
            self._compact_at = max(64, 2 * len(heap))
        self._count += 1
        heappush(heap, (deadline, self._count, call))
        return heap[0][2] is call

    def next(self) -> float:
        """The earliest deadline; infinity when there is none."""
        heap = self._heap
        while heap and (heap[0][2].closed or heap[0][2].cancelled):
            heappop(heap)
        return heap[0][0] if heap else float("inf")

    def expired(self, now: float) -> list[Call]:
        """Take out the calls whose deadline has passed."""
        found = []
        while self.next() <= now:
            found.append(heappop(self._heap)[2])
        return found
