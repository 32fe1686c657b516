"""A report is made whatever a step does, and names how each one ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.card.steps import Step, run
from tests.card.tarball import pack
from tests.world import SLOWER

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("command", "ended"),
    [
        (["sh", "-c", "echo this"], "ended well"),
        (["sh", "-c", "echo this; exit 3"], "ended with status 3, see step.txt"),
        (["no-such-program"], "left out: there is no no-such-program here"),
    ],
)
def test_a_step_says_how_it_ended(tmp_path: Path, command: list[str], ended: str) -> None:
    assert run(Step("step", "", command, {}), tmp_path, ROOT, 30 * SLOWER) == ended
    if not ended.startswith("left out"):
        assert (tmp_path / "step.txt").read_text() == "this\n"


def test_a_step_that_does_not_end_is_ended(tmp_path: Path) -> None:
    step = Step("step", "", ["sh", "-c", "exec sleep 3600"], {})
    assert run(step, tmp_path, ROOT, 0.5) == "had not ended after 0 s"


def test_what_a_step_leaves_in_the_tree_comes_along(tmp_path: Path) -> None:
    folder, tree = tmp_path / "folder", tmp_path / "tree"
    folder.mkdir()
    tree.mkdir()
    step = Step("step", "", ["sh", "-c", "echo 7 >made"], {}, Path("made"))
    assert run(step, folder, tree, 30 * SLOWER) == "ended well"
    assert (folder / "made").read_text() == "7\n"


def test_the_file_has_a_summary_and_not_the_machines_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "secret-name")
    folder = tmp_path / "card"
    folder.mkdir()
    (folder / "one.txt").write_text("Linux secret-name 6.1")
    made = pack(folder, [(Step("one", "", ["uname", "-a"], {}), "ended well")])
    assert os.stat(made).st_mode & 0o777 == 0o600
    with tarfile.open(made) as archive:
        texts = {
            member.name: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive.getmembers()
            if member.isfile()
        }
    assert texts == {"card/one.txt": "Linux HOST 6.1", "card/summary.txt": "one: ended well (uname -a)\n"}


@pytest.mark.long
def test_a_whole_report_of_the_device_that_is_here(tmp_path: Path) -> None:
    """Of the software device: what its commands are given is what they take."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.card", "soft", "-o", tmp_path),
            *("--suite", "tests/verbs/test_device.py -x"),
            *("--benchmark", "--quick --workloads roundtrip --peers stream-hybrid-uvloop"),
        ],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=300 * SLOWER,
    )
    (made,) = tmp_path.glob("soft-*.tgz")
    assert str(made) in done.stdout
    summary = (made.with_suffix("") / "summary.txt").read_text()
    for step in ("machine", "doctor", "tests", "benchmark"):
        assert f"{step}: ended well" in summary, done.stdout + summary
    assert "passed" in (made.with_suffix("") / "tests.txt").read_text()
    assert "aiordma streams (uvloop)" in (made.with_suffix("") / "benchmark.txt").read_text()
