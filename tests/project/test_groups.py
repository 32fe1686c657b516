"""Tests of one ``xdist_group`` run in one worker: they share a directory, ports, or a namespace's names.

pytest 9.2 and pytest-xdist 3.8 together ignore the groups, without a word. Two builds of a wheel in one
folder then broke each other, now and then.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import os, pathlib, pytest

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("number", range(8))
def test_together(number):
    pathlib.Path(__file__).with_name(f"{number}.worker").write_text(os.environ["PYTEST_XDIST_WORKER"])
"""


def test_a_group_has_one_worker(tmp_path: Path) -> None:
    (tmp_path / "test_them.py").write_text(TESTS, encoding="utf-8")
    options = ["-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup", "-c", "/dev/null"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--rootdir", tmp_path, tmp_path],
        cwd=tmp_path,
        env=os.environ | {"PYTEST_ADDOPTS": ""},  # they are for the tests of this tree
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    workers = {path.read_text(encoding="utf-8") for path in tmp_path.glob("*.worker")}
    assert len(workers) == 1
