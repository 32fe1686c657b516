"""The disk is full: what was there stays whole, tools say it in one line, and no stream notices."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.processes import FULL_PATIENCE

from .full_disk import BEFORE, ENVIRONMENT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(FULL_PATIENCE)]

MOUNT = 'mount -t tmpfs -o size=4m none "$1" || exit 77; shift; exec "$@"'


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program has seen, and its standard error."""
    folder: Path = tmp_path_factory.mktemp("disk")
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare")
    program = [sys.executable, "-m", "tests.system.adversity.full_disk", str(folder)]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", MOUNT, "sh", str(folder), *program],
        capture_output=True,
        text=True,
        timeout=FULL_PATIENCE,
        check=False,
        env={
            **ENVIRONMENT,
            "XDG_CACHE_HOME": str(folder / "cache"),
            "TMPDIR": str(folder),
            "SOFTDEV_WIRE": "only",
            "SOFTDEV_CAPTURE": str(folder / "packets.pcapng"),
        },
    )
    if done.returncode in (1, 77) and ("unshare" in done.stderr or "mount" in done.stderr):
        pytest.skip("this user cannot make a mount namespace")
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout.splitlines()[-1]), "err": done.stderr}


NAMES = ["bundle.tgz", "it.pcapng", "plan.md", "perf.svg", "cache/aiordma/stat.json"]


@pytest.mark.parametrize("name", [*NAMES, "plan", "results.db"])
def test_tools_say_it_in_one_line(done: dict[str, Any], name: str) -> None:
    said = done[name.rpartition("/")[2]]
    *others, last = said["err"].splitlines()
    assert last.startswith("Error: "), said
    assert "No space left on device" in last or "disk is full" in last
    assert said["rc"] == 1
    assert not others, said


@pytest.mark.parametrize("name", NAMES)
def test_what_was_there_stays(done: dict[str, Any], name: str) -> None:
    assert done["files"][name] == BEFORE


def test_nothing_half_written_remains(done: dict[str, Any]) -> None:
    assert set(done["files"]) == {*NAMES, "results.db", "log", "packets.pcapng", "cache/aiordma/plain-peers"}
    assert done["files"]["results.db"] == ""


def test_results_come_before_their_picture(done: dict[str, Any]) -> None:
    assert done["perf.svg"]["out"] > 0


def test_the_program_goes_on(done: dict[str, Any]) -> None:
    """Its log and its packets are cut short; its streams, calls and regions are not."""
    assert done["paths"] == ["rdma"]
    assert done["remembered"]
    assert done["known"] == sorted(done["known"])
    assert done["err"].count("softdev: no more packets are captured: No space left on device") == 1
    assert "Logging error" in done["err"]  # as logging reports it
    assert "Exception ignored" not in done["err"]
