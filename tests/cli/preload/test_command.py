"""`aiordma preload` finds the software device's library and runs programs on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")

COMMAND = [sys.executable, "-m", "aiordma", "preload"]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


def test_prints_the_library() -> None:
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert Path(done.stdout.strip()).name == "libsoftdev.so"
    assert Path(done.stdout.strip()).is_file()


def test_a_program_sees_the_device() -> None:
    done = run("ibv_devinfo")
    assert done.returncode == 0, done.stderr
    assert "hca_id:\tsoft0" in done.stdout


def test_options_and_exit_status_are_the_programs() -> None:
    done = run("sh", "-c", "exit 3")
    assert done.returncode == 3
    assert "rc_pingpong" in run("ibv_rc_pingpong", "--help").stderr.replace("ibv_", "")


def test_a_program_ends_when_nobody_reads_what_it_writes() -> None:
    done = run("bash", "-c", "yes | head -1; echo ${PIPESTATUS[0]}")
    assert done.stdout.split() == ["y", "141"], done.stderr


def test_what_was_preloaded_before_stays() -> None:
    done = run("sh", "-c", "echo $LD_PRELOAD", LD_PRELOAD="libm.so.6")
    assert done.stdout.strip().endswith("libsoftdev.so:libm.so.6")


def test_the_choice_of_a_device_reaches_the_program() -> None:
    """Of the words that AIORDMA_DEVICE may be, the device knows two, by a variable of its own."""
    command = ("sh", "-c", "echo $SOFTDEV_DEVICE")
    assert run(*command, AIORDMA_DEVICE="none").stdout == "none\n"
    assert run(*command, AIORDMA_DEVICE="none", SOFTDEV_DEVICE="soft").stdout == "soft\n"
    assert run(*command, AIORDMA_DEVICE="mlx5_0").stdout == "\n"
    assert "soft0" not in run("ibv_devices", AIORDMA_DEVICE="none").stdout


def test_no_such_program() -> None:
    done = run("no-such-program-here")
    assert done.returncode == 127
    assert "no-such-program-here: no such program" in done.stderr


def test_help_has_examples() -> None:
    done = run("--help")
    assert "aiordma preload ibv_devinfo" in done.stdout
