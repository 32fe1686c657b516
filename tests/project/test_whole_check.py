"""`.ci/run`: what it runs at the same time, what it says at the end, and that no failure hides another."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from .tree import ROOT

PARTS = ("test", "test-vm", "softdev-test", "lint", "test-install", "docs")


def tree(folder: Path, **recipes: str) -> Path:
    """A tree with the whole check, whose targets print their name instead, or do what is given."""
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    program = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (set_up,) = re.findall(r"^set_up=\((.*)\)", program, re.MULTILINE)
    lines = [f".PHONY: {set_up} {' '.join(PARTS)}"]
    for target in (*set_up.split(), *PARTS):
        lines += [f"{target}:", "\t@" + recipes.get(target.replace("-", "_"), f"echo this is {target}")]
    (folder / "Makefile").write_text("\n".join(lines) + "\n")
    return folder


def run(folder: Path) -> tuple[int, list[str]]:
    done = subprocess.run(
        [folder / ".ci" / "run"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, done.stdout.splitlines()


def test_the_end_says_what_each_part_took(tmp_path: Path) -> None:
    status, printed = run(tree(tmp_path))
    assert status == 0, printed
    assert printed[-1] == f"OK: {' '.join(PARTS)}"
    table = [
        re.fullmatch(r"=== (\S+) +\d+:\d\d, processor time +\d+:\d\d", line)
        for line in printed[-len(PARTS) - 3 : -1]
    ]
    assert [row and row[1] for row in table] == ["set-up", *PARTS, "total"]
    assert {f"this is {part}" for part in PARTS} <= set(printed)


def test_processor_time_is_that_of_all_processes(tmp_path: Path) -> None:
    burn = "import time\nwhile time.process_time() < 1.1: pass"
    (tmp_path / "burn.py").write_text(burn)
    _, printed = run(tree(tmp_path, docs="/usr/bin/python3 burn.py & /usr/bin/python3 burn.py; wait"))
    (row,) = [line for line in printed if line.startswith("=== docs ")]
    assert int(row[-2:]) >= 2


def test_no_failure_hides_another(tmp_path: Path) -> None:
    status, printed = run(
        tree(tmp_path, lint="echo of lint; exit 1", test="echo of pytest; exit 1", test_vm="exit 3")
    )
    assert status == 1
    assert printed[-1].startswith("FAILED: ")
    assert set(printed[-1].split()[1:]) == {"lint", "test", "test-vm"}
    assert {"of lint", "of pytest", "this is softdev-test", "=== make lint: FAILED"} <= set(printed)


def test_a_set_up_that_fails_is_named(tmp_path: Path) -> None:
    status, printed = run(tree(tmp_path, ready="exit 1"))
    assert (status, printed[-1]) == (1, "FAILED: set-up")


def test_what_ran_in_the_virtual_machine_is_told_at_the_end(tmp_path: Path) -> None:
    told = "=== test-wire-rxe  FAILED (1) in 3:10, processor time 3:05"
    _, printed = run(tree(tmp_path, test_vm=f"echo '{told}'; echo more; exit 1"))
    assert printed[-2:] == [told, "FAILED: test-vm"]


def test_a_lane_that_is_done_takes_the_next_part(tmp_path: Path) -> None:
    """The two longest parts begin at once; while one of them lasts, the other lane makes all the rest."""
    os.mkfifo(tmp_path / "last")
    status, printed = run(tree(tmp_path, test="read word <last", docs="echo end >last"))
    assert status == 0
    ended = [line for line in printed if line.startswith("=== make ") and line.endswith(": done")]
    assert set(ended[-2:]) == {"=== make docs: done", "=== make test: done"}
    assert len(ended) == 1 + len(PARTS)


def test_flaky_tests_are_named_at_the_end(tmp_path: Path) -> None:
    flaky = "FLAKY: tests/test_it.py::test_once (not listed)"
    status, printed = run(
        tree(tmp_path, test=f"echo '{flaky}'; echo more; exit 1", docs="echo FLAKY: another")
    )
    assert status == 1
    assert set(printed[-3:-1]) == {flaky, "FLAKY: another"}
    assert set((tmp_path / "build" / "flaky.txt").read_text().splitlines()) == {flaky, "FLAKY: another"}


def test_what_a_part_prints_stays_together(tmp_path: Path) -> None:
    """Both lanes are in their first part at the same time: each waits for the other there."""
    for name in ("here", "there"):
        os.mkfifo(tmp_path / name)
    count = "for n in $$(seq 500); do echo {0} $$n; done"
    lint = "echo >here; read answer <there; " + count.format("left")
    test = "read asked <here; echo >there; " + count.format("right")
    status, printed = run(tree(tmp_path, lint=lint, test=test))
    assert status == 0
    for name in ("left", "right"):
        first = printed.index(f"{name} 1")
        assert printed[first : first + 500] == [f"{name} {n}" for n in range(1, 501)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_both_lanes(tmp_path: Path, number: int) -> None:
    hangs = "exec 3>alive; echo here >&3; exec sleep 1000"
    os.mkfifo(tmp_path / "alive")
    command = [tree(tmp_path, lint=hangs, test=hangs) / ".ci" / "run"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as started:
        with (tmp_path / "alive").open() as alive:
            assert [alive.readline(), alive.readline()] == ["here\n", "here\n"]
            started.send_signal(number)
            assert alive.read() == ""  # its end: neither has it open any more
        assert started.wait() == 128 + number
