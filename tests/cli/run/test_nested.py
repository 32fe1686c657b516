"""`aiordma run` inside `aiordma run`: the inner one's options are obeyed."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from .test_command import COMMAND, PROGRAM, run

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")

#: The inner one in the outer one's process, and in a process that it starts.
INNER = {
    "one process": ["-m", "aiordma", "run"],
    "a child": ["sh", "-c", f'{shlex.join(COMMAND)} "$@"', "sh"],
}


@pytest.fixture(params=INNER)
def inner(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    (tmp_path / "program.py").write_text(PROGRAM)
    return INNER[request.param]


@pytest.mark.parametrize(
    ("options", "paths"),
    [
        ([], "rdma\nrdma\n"),
        (["--deny", "out:127.0.0.0/8"], "None\nNone\n"),
        (["--no-children"], "rdma\nNone\n"),
    ],
    ids=["none", "--deny", "--no-children"],
)
def test_options_of_the_inner_one(tmp_path: Path, inner: list[str], options: list[str], paths: str) -> None:
    done = run(tmp_path, *inner, *options, "program.py")
    assert (done.returncode, done.stdout) == (0, paths), done.stderr


def test_rules_of_both_hold(tmp_path: Path, inner: list[str]) -> None:
    done = run(tmp_path, "--deny", "out:127.0.0.0/8", *inner, "--allow", "*", "program.py")
    assert (done.returncode, done.stdout) == (0, "None\nNone\n"), done.stderr


@pytest.mark.parametrize("outer", [[], ["--report"]], ids=["plain", "--report"])
@pytest.mark.parametrize(
    "end", ["", "\nimport os, signal; os.kill(os.getpid(), signal.SIGTERM)"], ids=["by itself", "SIGTERM"]
)
def test_a_report_of_the_inner_one(tmp_path: Path, inner: list[str], outer: list[str], end: str) -> None:
    """Once for each process, however it ends; also if something has imported asyncio before."""
    (tmp_path / "sitecustomize.py").write_text("import asyncio")
    (tmp_path / "program.py").write_text(PROGRAM + end)
    done = run(tmp_path, *outer, *inner, "--report", "program.py", PYTHONPATH=str(tmp_path))
    assert done.stdout == "rdma\nrdma\n", done.stderr
    assert done.stderr.count("aiordma run: connections of process") == 2, done.stderr
    assert "rdma  2  client 127.0.0.1" in done.stderr


def test_what_the_outer_one_alone_was_asked_for(tmp_path: Path, inner: list[str]) -> None:
    done = run(tmp_path, "--report", *inner, "program.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "rdma\nrdma\n", "")
