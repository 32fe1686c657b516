"""A failed test is the only one that fails: see ``tests/leavings.py``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .tree import ROOT

#: The first test fails and leaves a cycle of something that complains unless it is closed, as a stream does.
SOURCE = """
import gc, warnings, pytest
pytestmark = pytest.mark.filterwarnings("error")

class Stream:
    closed = False
    def __init__(self): self.me = self
    def __del__(self):
        if not self.closed: warnings.warn("unclosed", ResourceWarning)

def test_that_fails():
    gc.disable()
    stream = Stream()
    assert not {test_that_fails}
    stream.closed = True

def test_between(): pass

def test_in_which_the_collector_runs():
    gc.collect()
"""


@pytest.mark.parametrize("fails", [True, False])
def test_no_other_test_is_blamed(tmp_path: Path, fails: bool) -> None:
    (tmp_path / "test_it.py").write_text(SOURCE.replace("{test_that_fails}", str(fails)))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.leavings", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ("1 failed, 2 passed" if fails else "3 passed") in done.stdout, done.stdout + done.stderr
