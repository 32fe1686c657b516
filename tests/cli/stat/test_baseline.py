"""The file of `aiordma stat --reset`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from aiordma.cli.stat.baseline import Baseline

if TYPE_CHECKING:
    from pathlib import Path


def test_a_pipe_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`aiordma stat` waited for who writes to it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "aiordma").mkdir()
    os.mkfifo(tmp_path / "aiordma" / "stat.json")
    assert Baseline.load().taken == {}
