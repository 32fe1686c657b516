"""Robust statistics of a curve: medians of parts of it, and the Theil-Sen slope."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import TypeAlias

#: (seconds since the beginning, value), in order of time
Curve: TypeAlias = Sequence[tuple[float, float]]

#: Slopes of all pairs of so many points are a moment's work; longer curves are thinned.
MOST_POINTS = 150


def between(curve: Curve, begin: float, end: float) -> list[tuple[float, float]]:
    """The points of ``begin <= time <= end``."""
    return [point for point in curve if begin <= point[0] <= end]


def middle(curve: Curve, begin: float, end: float) -> float:
    """Median of the values in a part of the curve; NaN where it has none."""
    values = [value for _, value in between(curve, begin, end)]
    return median(values) if values else math.nan


def thinned(curve: Curve, most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """At most about ``most`` points: medians of neighbours."""
    each = -(-len(curve) // most)
    if each <= 1:
        return list(curve)
    groups = [curve[at : at + each] for at in range(0, len(curve), each)]
    return [(median(time for time, _ in group), median(value for _, value in group)) for group in groups]


def slope(curve: Curve, part: float = 0.5) -> float:
    """Theil-Sen: the median of the slopes of all pairs of points, in units of the value a second.

    It hardly notices outliers: nearly 29 % of the points may be anywhere (Sen 1968, JASA 63:1379).

    :param part: another quantile of the slopes: this part of them is smaller.
    """
    points = thinned(curve)
    slopes = sorted(
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for at, earlier in enumerate(points)
        for later in points[at + 1 :]
        if later[0] > earlier[0]
    )
    return slopes[int(len(slopes) * part)] if slopes else 0.0
