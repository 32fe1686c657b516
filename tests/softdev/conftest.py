"""Where the software device's library is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aiordma.verbs import softlib

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def library() -> Path:
    """``libsoftdev.so`` as installed."""
    path = softlib.locate()
    assert path is not None, "the software device is not installed: run 'make install'"
    return path
