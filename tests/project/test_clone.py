"""pytest in a clone where nothing was built or installed names what is missing and the command for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests import conftest

from .tree import ROOT, tracked_files

if TYPE_CHECKING:
    from pathlib import Path


def test_nothing_is_missing_here() -> None:
    conftest.check_machine()


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(conftest._NEEDED, "no_such_package.no_such_module", "the missing link")
    with pytest.raises(pytest.UsageError, match=r"(?s)cannot run: the missing link missing.*make install"):
        conftest.check_machine()


@pytest.mark.slow
def test_a_clone_that_is_not_built(tmp_path: Path) -> None:
    for path in tracked_files():
        if path.suffix in {".py", ".pyi", ".toml", ".typed"}:
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    # Without site, the editable install of aiordma is not found; all other packages are.
    packages = [entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
    done = subprocess.run(
        [sys.executable, "-S", "-m", "pytest", "-q"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(packages)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert "the compiled parts of aiordma missing" in done.stderr
    assert "make install" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
