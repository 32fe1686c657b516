"""Small statistics."""

from __future__ import annotations

from collections.abc import Sequence


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value at `share` (0 to 1) of ascending `ordered`: the nearest rank, no interpolation."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
