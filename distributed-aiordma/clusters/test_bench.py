"""The benchmark keeps what it has measured, whatever a transport prints and however its round ends."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest
from draw import draw
from measure import MIB, Sample, attempts
from report import report
from rounds import in_a_process, in_this_process

if TYPE_CHECKING:
    from pathlib import Path

SAMPLE = Sample("ucxx", "transfer", MIB, 1e9)
PATHS = {"workers": [{"ucxx://": 2}], "scheduler and client": {}, "load": 0.5}


def program(body: str) -> list[str]:
    """A round that does ``body``, with ``write(outcome)`` to put its outcome where it belongs."""
    text = f"""
    import json, os, pathlib, signal, subprocess, sys, threading
    def write(samples, paths, failure=None):
        path = pathlib.Path(sys.argv[sys.argv.index("--result") + 1])
        path.write_text(json.dumps({{"samples": samples, "paths": paths, "failure": failure}}))
    sample, paths = {list(SAMPLE)!r}, {PATHS!r}
    """
    return [sys.executable, "-c", textwrap.dedent(text) + textwrap.dedent(body)]


def test_what_a_transport_prints_is_no_result() -> None:
    outcome = in_a_process("ucxx", program("print('parser.c UCX WARN'); write([sample], paths)"), 60)
    assert outcome == ([SAMPLE], PATHS, None)


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        ("write([sample], None); sys.exit(3)", "failed: exit status 3"),
        ("write([sample], None); os.kill(os.getpid(), signal.SIGSEGV)", "failed: ended by SIGSEGV"),
        ("write([sample], None, 'failed: OSError: no')\nsys.exit(1)", "failed: OSError: no"),
        ("write([sample], paths); sys.exit(1)", None),  # all was measured; its end does not matter
    ],
)
def test_a_round_that_fails_keeps_what_it_has_measured(body: str, failure: str | None) -> None:
    outcome = in_a_process("ucxx", program(body), 60)
    assert (outcome.samples, outcome.failure) == ([SAMPLE], failure)


def test_a_round_that_fails_at_once() -> None:
    assert in_a_process("ucxx", program("sys.exit(2)"), 60) == ([], None, "failed: exit status 2")


def test_a_round_that_takes_too_long_is_ended_with_what_it_has_started(tmp_path: Path) -> None:
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    body = f"""
    alive = os.open({str(fifo)!r}, os.O_WRONLY)
    subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"], pass_fds=[alive])
    write([sample], None)
    threading.Event().wait()
    """
    outcome = in_a_process("ucxx", program(body), 5)
    assert outcome.failure == "was not done after 5 s"
    os.set_blocking(reading, True)
    assert os.read(reading, 1) == b""  # its end: no process has the other end any more
    os.close(reading)


def test_a_round_says_in_its_file_why_it_failed(tmp_path: Path) -> None:
    class Effort:
        sizes, times, tasks, seconds = [MIB], 1, 1, 1.0

    result = tmp_path / "result"
    with pytest.raises(RuntimeError, match="failed to start"):
        in_this_process("nosuch", Effort, result)
    found = json.loads(result.read_text())
    assert found["samples"] == []
    assert found["failure"].startswith("failed: RuntimeError: ")


def test_few_attempts_of_what_takes_long() -> None:
    assert list(attempts(3, 60)) == [0, 1, 2, 3]
    assert list(attempts(9, 0)) == [0, 1]


def test_report_and_picture_where_one_protocol_has_failed(tmp_path: Path) -> None:
    samples = [SAMPLE]
    for protocol, speed in (("tcp", 1e9), ("rdma", 4e9)):
        samples += [Sample(protocol, "transfer", size * MIB, speed) for size in (1, 16)]
    text = report(samples, {"tcp": [PATHS], "rdma": [PATHS], "ucxx": []}, 1, ["`ucxx://`, round 1: failed."])
    small, large = (line for line in text.splitlines() if line.startswith("| worker to worker"))
    assert small.endswith("| 4.00x | at least 1x | reached | yes, 4x |")
    assert large.endswith("|  | 4.00x | at least 3x | reached |  |")
    assert text.endswith("* `ucxx://`, round 1: failed.\n")
    draw(samples, tmp_path / "picture.svg")
    assert "16 MiB" in (tmp_path / "picture.svg").read_text()
