"""`aiordma demo`: each act shows RDMA and ends well, and Ctrl-C leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.processes import FULL_PATIENCE

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")

from aiordma.cli.demo import carriers

COMMAND = [sys.executable, "-m", "aiordma", "demo", "--seconds", "0.05"]


def shown(*acts: str) -> str:
    """What it prints: an act starts up to 24 processes, one after the other."""
    done = subprocess.run(
        [*COMMAND, *acts],
        capture_output=True,
        text=True,
        timeout=10 * FULL_PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Both ends of everything are on this host" in done.stdout
    assert "aiordma run python server.py" in done.stdout
    return done.stdout


@pytest.mark.timeout(20 * FULL_PATIENCE)
def test_programs() -> None:
    printed = shown("programs")
    assert printed.count("\n  python service.py  ") == printed.count("\n  aiordma run service.py  ") == 2
    assert "the client: its connection used RDMA." in printed


def test_latencies_are_of_the_device_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIORDMA_DEVICE", "soft1")
    monkeypatch.setenv("AIORDMA_MODE", "tcp")
    config = carriers._config(True)
    assert (config.device, config.mode) == ("soft1", "rdma")


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("AIORDMA_DEVICE", "none", "RDMA is switched off by configuration"),
        ("AIORDMA_RING_BYTES", "much", "AIORDMA_RING_BYTES='much' is not valid"),
    ],
)
def test_what_keeps_it_from_beginning_is_one_line(variable: str, value: str, text: str) -> None:
    done = subprocess.run(
        COMMAND,
        capture_output=True,
        text=True,
        env={**os.environ, variable: value},
        timeout=FULL_PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith(f"Error: {text}")


@pytest.mark.parametrize(("encoding", "bar"), [("utf-8", "█" * 40), ("iso-8859-1", "#" * 40)])
def test_bars_are_of_what_the_terminal_can_show(encoding: str, bar: str) -> None:
    program = "from aiordma.cli.demo.bars import bars; print(*bars([('a', 1.0, 'x'), ('b', 0.99, 'y')]))"
    printed = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        encoding=encoding,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        timeout=FULL_PATIENCE,
        check=True,
    ).stdout
    assert bar in printed


@pytest.mark.long  # `make test-install` runs the whole demo
@pytest.mark.timeout(20 * FULL_PATIENCE)
def test_latency() -> None:
    rows = re.findall(r"^  (\w.*?)((?:  +[\d,.]+ us){4})$", shown("latency"), re.MULTILINE)
    assert [name for name, _ in rows] == [
        "TCP, asyncio streams",
        "Unix socket, asyncio streams",
        "aiordma stream",
        "TCP, MessagePack on asyncio streams",
        "Unix socket, MessagePack on asyncio streams",
        "aiordma call",
    ]


@pytest.mark.timeout(20 * FULL_PATIENCE)
def test_cut() -> None:
    printed = shown("cut")
    assert re.findall(r"MiB sent  (.*)$", printed, re.MULTILINE) == [
        "the stream uses RDMA",
        "now the link is cut",
        "the stream goes on by TCP",
        "the stream uses RDMA again",
        "the end",
    ]
    # What an operator sees meanwhile.
    assert re.search(r"cut\.py\[\d+\] .* TCP 0x0a1d0020", printed)
    assert "both ends have the same SHA-256" in printed


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return list(map(int, file.read().split()))


def runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_ctrl_c_leaves_no_process() -> None:
    command = [*COMMAND[:-1], "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        while "aiordma run" not in demo.stdout.readline():
            assert demo.poll() is None
        while not (ended := children(demo.pid)):
            assert demo.poll() is None
        # A terminal sends it to the whole group; here the demo alone gets it, which is harder.
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=FULL_PATIENCE)
    assert demo.returncode == 1
    assert errors.strip() == "Aborted!"
    # One that had just been started ends by itself, as its standard input does.
    deadline = time.monotonic() + FULL_PATIENCE
    while any(map(runs, ended)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
