"""What counts instructions and system calls reads the tools' files rightly, and each row of it runs."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from benchmarks import counted, floor
from benchmarks.countable import ROWS

CALLGRIND = """\
events: Ir
ob=(1) /usr/bin/python3.11
fn=(1) PyEval
12 100
+3 20
cob=(2) /x/aiordma/pipes/_ring.cpython-311-x86_64-linux-gnu.so
cfn=(2) put
calls=4 0
* 5000
* 3
ob=(2)
fn=(2)
7 40
cob=(3) /usr/lib/x86_64-linux-gnu/libc.so.6
cfn=(3) memcpy
calls=1 0
-2 9
ob=(4) /x/site-packages/aiordma/libsoftdev.so
fn=(4) post
0 8
ob=(3)
fn=(3)
1 9
ob=(5) /x/site-packages/msgspec/_core.so
fn=(5) encode
1 2

totals: 182
"""

STRACE = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.000060           0       200           epoll_pwait
 40.00    0.000040           0       100         3 read
------ ----------- ----------- --------- --------- ----------------
100.00    0.000100           0       300         3 total
"""


def test_instructions_are_counted_where_they_are_executed() -> None:
    found = counted.instructions(iter(CALLGRIND.splitlines()))
    # Not what a function calls: that is counted there.
    assert dict(found) == {"Python": 123, "aiordma": 40, "device": 8, "C library": 9, counted.OTHERS: 2}


def test_system_calls_are_counted_by_name() -> None:
    assert dict(counted.system_calls(iter(STRACE.splitlines()))) == {"epoll_pwait": 200, "read": 100}


@pytest.mark.parametrize("row", [name for name in ROWS if name != "grpclib"])
def test_each_row_works_with_both_ends_in_one_process(row: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.countable", row, "0.02", "--slow"],
        input="\n\n",
        capture_output=True,
        text=True,
        cwd=counted.ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ready, said = done.stdout.splitlines()
    assert ready == '"ready"'
    assert '"count": ' in said


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("valgrind") or not shutil.which("strace"), reason="needs both tools")
def test_a_row_is_counted() -> None:
    cells = counted.measure("unix", 0.2)
    assert len(cells) == 1 + len(counted.PARTS) + 4
    python, device = (
        float(cells[1 + [*counted.PARTS].index(part)].replace(",", "")) for part in ("Python", "device")
    )
    assert python > 10_000
    assert device == 0
    # Each end waits, reads and writes. A busy machine adds a wake-up of a loop, now and then.
    assert 6 <= float(cells[-2].split()[0]) < 6.5


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_the_floor_is_measured(tmp_path: object) -> None:
    found = floor.once(floor.compiled(str(tmp_path)), 0.01)
    assert found.keys() == floor.TITLES.keys()
    assert all(value > 0 for value in found.values())
