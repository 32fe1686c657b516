"""Numbers as text: bars with their factor, and a table of numbers."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_WIDTH = 40
_PARTS = " ▏▎▍▌▋▊▉█"
#: Where standard output's encoding has none of these, as ISO 8859-1.
_PLAIN_PARTS = "    #####"


def bars(rows: Sequence[tuple[str, float, str]]) -> list[str]:
    """A line for each (name, number, its text): the largest number has the whole width, the last a factor.

    >>> for line in bars([("plain", 10.0, "10 /s"), ("RDMA", 40.0, "40 /s")]): print(line)
      plain  ██████████                                10 /s
      RDMA   ████████████████████████████████████████  40 /s  4.0 times
    """
    most = max(number for _, number, _ in rows)
    names = max(len(name) for name, _, _ in rows)
    texts = max(len(text) for _, _, text in rows)
    lines = [f"  {name:<{names}}  {_bar(number / most)}  {text:>{texts}}" for name, number, text in rows]
    lines[-1] += f"  {rows[-1][1] / rows[0][1]:.1f} times"
    return lines


def _bar(share: float) -> str:
    parts = _parts()
    whole, part = divmod(round(share * _WIDTH * 8), 8)
    return (parts[8] * whole + (parts[part] if part else "")).ljust(_WIDTH)


def _parts() -> str:
    try:
        _PARTS.encode(sys.stdout.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return _PLAIN_PARTS
    return _PARTS


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of columns; all but the first are aligned to the right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return [
        "  "
        + "  ".join(
            f"{cell:<{width}}" if not column else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
