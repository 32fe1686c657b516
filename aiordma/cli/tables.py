"""Tables and numbers for people. Strings of other processes are shown without control characters."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

#: Where there is nothing to show.
NONE = (
    "no process uses aiordma, of those that this user may look at and that may use RDMA "
    "(one whose connections are all mode='tcp' is like any program on TCP, and is not seen)"
)

_UNITS = ("", "K", "M", "G", "T", "P")


class Column(NamedTuple):
    """One column of rows of any type."""

    title: str
    text: Callable[..., object]
    #: numbers are right-aligned
    right: bool = False


def clean(text: str) -> str:
    """What cannot move the cursor or change the terminal."""
    return text if text.isprintable() else "".join(each if each.isprintable() else "?" for each in text)


def bytes_text(count: float) -> str:
    """``1023``, ``1.0K``, ``31.4M``: binary multiples, at most five characters."""
    unit = 0
    while count >= 999.5 and unit < len(_UNITS) - 1:
        count /= 1024
        unit += 1
    if unit == 0:
        return f"{count:.0f}"
    return f"{count:.1f}{_UNITS[unit]}" if count < 99.95 else f"{count:.0f}{_UNITS[unit]}"


def seconds_text(seconds: float) -> str:
    """``0.4s``, ``59s``, ``12m``, ``7.5h``, ``31d``."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    if seconds < 120:
        return f"{seconds:.0f}s"
    if seconds < 7200:
        return f"{seconds / 60:.0f}m"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f}h"
    return f"{seconds / 86_400:.0f}d"


#: So many times have a percentile of this name beyond the longest.
_NEEDED = {"p99": 100, "p999": 1000}


def micros_text(microseconds: float, name: str, count: int) -> str:
    """``48.2``; ``-`` for a percentile that so many times do not have: 1 % of less than 100 is none of them.

    :param name: such as ``p99``.
    :param count: times that were taken.
    """
    return "-" if count < _NEEDED.get(name, 0) else f"{microseconds:.1f}"


def moment_text(at: float) -> str:
    """``14:03:27`` of today, ``2026-11-28 14:03`` of other days; empty if it is 0 or no moment.

    :param at: seconds since the epoch.
    """
    try:
        when = time.localtime(at)
    except (ValueError, OverflowError, OSError):
        return ""
    if not at:
        return ""
    today = time.localtime()[:3] == when[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", when)


def table(columns: Sequence[Column], rows: Iterable[object]) -> list[str]:
    """Lines: the titles, then one for each row."""
    cells = [[clean(str(column.text(row))) for column in columns] for row in rows]
    titles = [column.title for column in columns]
    widths = [max(map(len, each)) for each in zip(titles, *cells, strict=True)]
    pads = [str.rjust if column.right else str.ljust for column in columns]

    def line(texts: list[str]) -> str:
        return "  ".join(
            [pad(text, width) for pad, text, width in zip(pads, texts, widths, strict=True)]
        ).rstrip()

    return [line(titles), *map(line, cells)]
