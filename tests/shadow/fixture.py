"""A shadow beside each stream of a test. Any test has it with ``pytest -p tests.shadow.fixture``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .hooks import Shadows

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["shadows"]


@pytest.fixture(autouse=True)
def shadows() -> Iterator[Shadows]:
    """Fails where a stream's life and the objects that have it today do different things."""
    shadows = Shadows()
    with shadows.watching():
        yield shadows
    told = "\n\n".join(f"{kind}: {text}" for kind, text in shadows.differences)
    assert not shadows.differences, told
