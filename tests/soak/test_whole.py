"""The whole soak for some seconds, ended by Ctrl-C: slow, but what nobody runs stops working unseen."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import FULL_PATIENCE

from .roles import STEADY

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.timeout(180)
def test_it_ends_with_a_verdict_and_leaves_nobody_behind(tmp_path: Path) -> None:
    picture = tmp_path / "soak.svg"
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "tests.soak", "--seed", "1", "--picture", str(picture)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        start_new_session=True,  # so that all of its processes can be counted
    ) as soak:
        assert soak.stdout is not None
        try:
            said = soak.stdout.readline()
            assert said.startswith("60 minutes, --seed 1")
            said += soak.stdout.readline()
            assert said.endswith("processes have begun\n")
            # No line about the progress comes so early: it is in the middle of everything.
            select.select([soak.stdout], [], [], 12)
            soak.send_signal(signal.SIGINT)
            said += soak.communicate(timeout=3 * FULL_PATIENCE)[0]
        finally:
            soak.kill()
    assert soak.returncode == 0, said
    assert "SIGINT: ending" in said
    assert said.endswith("CLEAN\n")
    assert set(STEADY) <= {line[:24].strip() for line in said.splitlines()}
    assert picture.with_suffix(".json").stat().st_size > 1000
    with pytest.raises(ProcessLookupError):
        os.killpg(soak.pid, 0)
