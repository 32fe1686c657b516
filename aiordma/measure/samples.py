"""Times of many operations: percentiles, the extremes, and a curve, in bounded memory."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Times that are kept; of more than that, each second, fourth ... one.
_MOST = 1 << 20
#: Where the curve of a distribution has its points.
_SHARES = (*(number / 100 for number in range(100)), 0.995, 0.999, 0.9999, 1.0)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value at ``share`` (0 to 1) of ascending ``ordered``: the nearest rank, no interpolation."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


class Samples:
    """Seconds that operations took. Count, mean and extremes are exact, whatever is kept."""

    def __init__(self) -> None:
        self._kept = array("d")
        self._stride = 1
        #: of the next ones, until one is kept again
        self._skip = 0
        self.count = 0
        self._sum = 0.0
        self._least, self._most = 0.0, 0.0
        self._is_ordered = True

    def add(self, seconds: array[float]) -> None:
        """Add some."""
        if not seconds:
            return
        least, most = min(seconds), max(seconds)
        self._least = min(self._least, least) if self.count else least
        self._most = max(self._most, most)
        self.count += len(seconds)
        self._sum += sum(seconds)
        self._kept.extend(seconds[self._skip :: self._stride])
        self._skip = (self._skip - len(seconds)) % self._stride
        self._is_ordered = False
        self._thin_out()

    def _thin_out(self) -> None:
        while len(self._kept) > _MOST:
            self._kept = self._kept[::2]
            self._stride *= 2

    def merge(self, other: Samples) -> None:
        """Add those of ``other``, which is not used any more."""
        if not other.count:
            return
        while other._stride < self._stride:
            other._kept, other._stride = other._kept[::2], other._stride * 2
        while self._stride < other._stride:
            self._kept, self._stride = self._kept[::2], self._stride * 2
        self._least = min(self._least, other._least) if self.count else other._least
        self._most = max(self._most, other._most)
        self.count += other.count
        self._sum += other._sum
        self._kept.extend(other._kept)
        self._is_ordered = False
        self._thin_out()

    def at(self, share: float) -> float:
        """Microseconds that this share of the operations took at most; 0 without any."""
        if not self.count:
            return 0.0
        if share <= 0:
            return self._least * 1e6
        if share >= 1:
            return self._most * 1e6
        if not self._is_ordered:
            self._kept = array("d", sorted(self._kept))
            self._is_ordered = True
        return percentile(self._kept, share) * 1e6

    @property
    def mean(self) -> float:
        """In microseconds."""
        return self._sum / self.count * 1e6 if self.count else 0.0

    def curve(self) -> list[tuple[float, float]]:
        """The distribution: (microseconds, share of the operations that took no longer)."""
        return [(round(self.at(share), 3), share) for share in _SHARES] if self.count else []
