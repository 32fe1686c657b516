"""What ``aiordma ping`` shows on a terminal while it measures: each round trip, or a line each second."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence


class Live:
    """Of one kind.

    :param each: there is a pause between round trips, long enough to read a line.
    """

    def __init__(self, kind: str, count: int, each: bool) -> None:
        self._kind, self._count, self._each = kind, count, each
        self._done = 0
        self._taken: list[float] = []
        self._last = time.perf_counter()

    def __call__(self, path: str, taken: Sequence[float]) -> None:
        """:param taken: seconds of some round trips."""
        self._done += len(taken)
        name = f"{self._kind} {path.upper()}"
        if self._each:
            for seconds in taken:
                click.echo(f"{name}: trip {self._done}, {seconds * 1e6:.1f} us", err=True)
            return
        self._taken += taken
        if time.perf_counter() - self._last >= 1 and self._taken:
            ordered = sorted(self._taken)
            half, most = ordered[len(ordered) // 2] * 1e6, ordered[-1] * 1e6
            text = f"{name}: {self._done} of {self._count} trips; of the last {len(ordered)}, "
            click.echo(f"{text}median {half:.1f} us, max {most:.1f} us", err=True)
            self._taken, self._last = [], time.perf_counter()
