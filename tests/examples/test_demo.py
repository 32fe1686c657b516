"""`make demo`'s program: all of it at a small scale, and its behaviour when interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from demolib.processes import Program

from tests.world import SLOWER

from .conftest import EXAMPLES
from .stack import until

pytestmark = pytest.mark.slow

DEMO = str(EXAMPLES / "demo.py")


def children(pid: int) -> list[int]:
    """Every process that `pid` has started and that still runs."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def test_the_demo_proves_and_measures() -> None:
    demo = [sys.executable, DEMO, "--rounds", "1", "--scale", "0.05"]
    result = subprocess.run(demo, capture_output=True, text=True, timeout=50 * SLOWER)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "streams between front and back travel by rdma" in result.stdout
    assert result.stdout.count(" ok ") == 9
    for row in ("SET -P 1 ", "GET -P 1 ", "SET -P 16", "GET -P 16"):
        line = next(line for line in result.stdout.splitlines() if row in line)
        assert line.rstrip(" │").endswith("x"), line
    assert "RDMA is " in result.stdout, "what the ratios mean"
    assert max(map(len, result.stdout.splitlines())) <= 80, "it fits a terminal"


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_the_demo_leaves_nothing_behind(number: signal.Signals) -> None:
    demo = Program(sys.executable, DEMO, ready="ok")
    started = children(demo.process.pid)
    assert len(started) >= 5, "redis-server, two fronts, two backs"
    assert demo.stop(number) == 128 + number
    assert "Traceback" not in demo.output
    until(lambda: not any(_runs(pid) for pid in started), "all are ended")


def test_the_demo_says_what_is_missing() -> None:
    env = dict(os.environ, PATH="/nonexistent")
    result = subprocess.run(
        [sys.executable, DEMO], capture_output=True, text=True, timeout=50 * SLOWER, env=env
    )
    assert result.returncode == 1
    assert "redis-server is missing" in result.stdout


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
