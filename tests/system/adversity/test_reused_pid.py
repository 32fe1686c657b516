"""A process has ended, and its number is another one's: no tool takes one for the other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from typing import Any

import pytest

from tests.processes import FULL_PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(FULL_PATIENCE)]

#: Without the setting that the test would change.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "AIORDMA_BUSY_POLL_US"}


@pytest.fixture(scope="module")
def done() -> dict[str, Any]:
    """What the program has seen."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("this user cannot make a PID namespace")
    with tempfile.TemporaryDirectory(prefix="pids") as folder:  # short: it is part of a socket's name
        done = subprocess.run(
            [*unshare, sys.executable, "-m", "tests.system.adversity.reused_pid"],
            capture_output=True,
            text=True,
            timeout=FULL_PATIENCE,
            check=False,
            env={**ENVIRONMENT, "XDG_RUNTIME_DIR": folder, "XDG_CACHE_HOME": folder},
        )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("what", ["stat", "adm", "bundle"])
def test_a_stranger_has_the_number(done: dict[str, Any], what: str) -> None:
    """Its files are still there: they are of nobody."""
    assert done["stat, first"][0] == done["reset"][0] == 0
    status, text = done[what]
    assert status == 1
    assert "no process uses aiordma" in text or "0 event loops" in text
    assert done["in it"] == 0


def test_a_question_that_was_for_the_first(done: dict[str, Any]) -> None:
    """A tool that had found it does not ask, or change, the next one, although a child of the first still
    listens. Nor does it read what the kernel knows of the next one."""
    assert "answered" not in done["asked"] + done["changed"]
    assert done["get"] == [0, "python[20000]: busy_poll_us=unset\n"]
    of_the_first, of_the_next = done["proc"]
    assert of_the_first == []
    assert of_the_next == [["status", "limits", "wchan", "cgroup"]]


def test_the_next_one_is_itself(done: dict[str, Any]) -> None:
    """It has none of the first's counts, and no page is left of that."""
    status, text = done["stat, third"]
    (process,) = json.loads(text)["processes"]
    assert (status, process["pid"], process["state"], process["since"]) == (0, 20000, "answered", None)
    assert done["pages"] == [1, 1]
