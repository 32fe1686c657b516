"""The file of `aiordma stat --reset`, and where no file can be."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from aiordma.cli.stat.baseline import Baseline
from aiordma.cli.stat.command import stat

if TYPE_CHECKING:
    from pathlib import Path


def test_a_pipe_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`aiordma stat` waited for who writes to it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "aiordma").mkdir()
    os.mkfifo(tmp_path / "aiordma" / "stat.json")
    assert Baseline.load().taken == {}


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container, for a user without an entry in /etc/passwd."""

    def unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


NOBODYS = ["--program", "no such program"]


@pytest.mark.usefixtures("homeless")
@pytest.mark.parametrize("words", [["--totals"], ["--all"], ["--json"]], ids=lambda words: words[0])
def test_totals_without_a_home(words: list[str]) -> None:
    assert CliRunner().invoke(stat, [*words, *NOBODYS], catch_exceptions=False).exit_code == 1


@pytest.mark.usefixtures("homeless")
def test_what_cannot_be_remembered_without_a_home() -> None:
    done = CliRunner().invoke(stat, ["--reset", *NOBODYS], catch_exceptions=False)
    assert (done.exit_code, "the totals cannot be stored: " in done.stderr) == (1, True)
    assert "XDG_CACHE_HOME" in done.stderr


def test_what_cannot_be_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    done = CliRunner().invoke(stat, ["--reset", *NOBODYS], catch_exceptions=False)
    assert (done.exit_code, "the totals cannot be stored: Not a directory" in done.stderr) == (1, True)
