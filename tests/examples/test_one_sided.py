"""The parameter server and the shared array, with several workers each, as a user runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from demolib.processes import Program

from .conftest import EXAMPLES, MODES

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow
WORKERS = 3
LISTEN = ["--listen", "127.0.0.1:0", "--workers", str(WORKERS)]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(os.environ, "AIORDMA_MODE", request.param)
    chosen: str = request.param
    return chosen


def begun(example: str, *arguments: str) -> Program:
    return Program(sys.executable, str(EXAMPLES / example), *arguments, *LISTEN, ready="listening on ")


def workers(example: str, owner: Program) -> Iterator[str]:
    command = [
        sys.executable,
        str(EXAMPLES / example),
        "worker",
        owner.first_line.removeprefix("listening on "),
    ]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(WORKERS)
    ]
    try:
        for each in running:
            said, _ = each.communicate(timeout=60)
            assert each.returncode == 0, said
            yield said
    finally:
        for each in running:
            each.kill()
            each.wait()


def test_no_change_of_a_parameter_is_lost(mode: str) -> None:
    server = begun("parameter_server.py", "server", "--steps", "1500")
    try:
        said = list(workers("parameter_server.py", server))
        server.process.wait(60)
    finally:
        server.stop()
    assert sum(int(each.split()[0]) for each in said) == 1500
    assert all(f"over {mode}, atomic operations by the" in each for each in said)
    found, truth = ([float(word) for word in line.split()[1:]] for line in server.output.splitlines()[-2:])
    assert found == pytest.approx(truth, abs=0.02)


def test_every_tile_is_in_its_place(mode: str) -> None:
    owner = begun("shared_array.py", "owner")
    try:
        said = list(workers("shared_array.py", owner))
        owner.process.wait(60)
    finally:
        owner.stop()
    assert sum(int(each.split()[0]) for each in said) == 12
    assert all(each.endswith(f"over {mode}\n") for each in said)
    rows = owner.output.splitlines()[-24:]
    assert len(rows) == 24
    assert rows[1:12] == rows[:12:-1]  # it is symmetrical
    assert rows[12].count("@") > 60
