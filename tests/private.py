"""Marks for what is lost with `AIORDMA_PRIVATE_APIS=off`, by the row of its table that says so."""

from __future__ import annotations

import pytest

from aiordma import borrowed
from aiordma.borrowed.table import CPYTHON, TABLE


def _reason(name: str, owner: str) -> str:
    (row,) = (row for row in TABLE if row.owner == owner and name in row.names)
    return f"{borrowed.VARIABLE}=off, without {name}: {row.lost}"


def needs(name: str, owner: str = CPYTHON) -> pytest.MarkDecorator:
    """Skip a test of what is lost without this private name: docs/reference/private.md has the same words."""
    return pytest.mark.skipif(not borrowed.ENABLED, reason=_reason(name, owner))


def skip_without(name: str, owner: str = CPYTHON) -> None:
    """The same in a test, of which one case is lost only."""
    if not borrowed.ENABLED:
        pytest.skip(_reason(name, owner))
