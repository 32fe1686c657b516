"""The step of `aiordma doctor` about private interfaces of others: are they as they were when tried?"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ...borrowed import ENABLED, VARIABLE
from ...borrowed.table import TABLE, TRIED, installed, was_tried
from .findings import Finding, note, ok

if TYPE_CHECKING:
    from ...borrowed.table import Interface


def interfaces() -> Finding:
    """Those of what is installed here."""
    if not ENABLED:
        return ok(f"none is used: {VARIABLE}=off")
    found = {owner: version for owner in TRIED if (version := installed(owner)) is not None}
    rows = [row for row in TABLE if row.owner in found]
    numbers = Counter(row.owner for row in rows)
    text = ", ".join(f"{number} of {owner} {found[owner]}" for owner, number in numbers.items())
    untried = [
        f"{owner} {version} (but {', '.join(TRIED[owner])})"
        for owner, version in found.items()
        if not was_tried(owner, version)
    ]
    if untried:
        text += f"; not tried: {', '.join(untried)}"
    different = [f"{row.owner}: {why}. Lost: {row.lost}" for row in rows if (why := _difference(row))]
    if different:
        return note(f"{text}; different from what was tried: {'; '.join(different)}")
    return ok(f"{text}; all as expected")


def _difference(row: Interface) -> str:
    try:
        return row.shape()
    except Exception as error:  # a version in which it is so different that it cannot be looked at
        return f"{type(error).__name__}: {error}"
