"""What tests of `aiordma.install()` share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import aiordma
from aiordma.negotiation import peer_cache
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's cache of plain peers; and whatever a test installs is gone after it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("AIORDMA_DEVICE", DEVICE)
    peer_cache.forget()
    yield tmp_path / "aiordma" / "plain-peers"
    aiordma.uninstall()
    peer_cache.forget()
