"""The thread that stands in for the event loop, in C: three threads in orders that are drawn (stand_in.c)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.processes import FULL_PATIENCE

ROOT = Path(__file__).parents[2]
#: More seeds find more.
ROUNDS = int(os.environ.get("AIORDMA_TEST_ROUNDS", "1"))
SANITIZERS = {"plain": [], "address": ["-fsanitize=address,undefined"], "thread": ["-fsanitize=thread"]}


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_the_queue_has_one_owner_at_a_time(tmp_path: Path, sanitizer: str) -> None:
    run(tmp_path, *SANITIZERS[sanitizer])


def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    run(tmp_path, "-DAIO_STAND_IN_COPIES=2")


def run(tmp_path: Path, *more: str) -> None:
    program = tmp_path / "stand_in"
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", *more]
    flags += ["-DAIO_STAND_IN_BUSY_MS=1", f"-I{ROOT}", "-o", str(program)]
    subprocess.run(["cc", *flags, Path(__file__).with_name("stand_in.c"), "-lpthread"], check=True)
    for seed in range(1, 3 * ROUNDS + 1):
        done = subprocess.run(
            [program, str(seed)], capture_output=True, text=True, check=False, timeout=FULL_PATIENCE
        )
        assert done.returncode == 0, f"seed {seed}: {done.stdout}{done.stderr}"
        taken, answered = int(done.stdout.split()[0]), int(done.stdout.split()[4])
        assert taken > 0
        assert answered > 0
