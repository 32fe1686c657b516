"""The plug-in as its users have it: a folder with a test of theirs, and pytest run in it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import pytest_softdev
from pytest_softdev import device, personality
from tests.processes import PATIENCE
from tests.project.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.timeout(180)


class Run(NamedTuple):
    """A run of pytest."""

    status: int
    text: str


@pytest.fixture
def pytest_run(tmp_path: Path) -> Callable[..., Run]:
    """Runs pytest on the text of a test, in a folder of its own."""

    def run(test: str, *options: str) -> Run:
        folder = tmp_path / "theirs"
        folder.mkdir()
        (folder / "test_theirs.py").write_text(f"import os, sys, pytest\n{test}", encoding="utf-8")
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *options]
        done = subprocess.run(
            [*command, "--rootdir", str(folder), "--basetemp", str(tmp_path / "base"), str(folder)],
            env=environ,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
        )
        return Run(done.returncode, done.stdout + done.stderr)

    return run


PINGPONG = """
def test_pingpong(rdma_device, rdma_pair):
    program = ["ibv_rc_pingpong", "-d", rdma_device.name, "-g", str(rdma_device.gid_index), "-p", "23507"]
    server, client = rdma_pair(program, [*program, rdma_device.address])
    assert "1000 iters" in server.output and "1000 iters" in client.output
"""

#: rping's listener is one of rdma_cm.
RPING = """
def test_rping(rdma_device, rdma_pair):
    program = ["rping", "-a", rdma_device.address, "-p", "23508", "-C", "3"]
    server, client = rdma_pair([*program, "-s"], [*program, "-c", "-v"])
    assert client.output.count("ping data: rdma-ping-") == 3
"""

IN_PYTHON = """
CODE = '''
import asyncio, aiordma
async def main():
    async def echo(stream):
        await stream.send(await stream.receive())
    async with aiordma.listen("127.0.0.1", 0) as listener:
        serving = asyncio.create_task(listener.serve(echo))
        async with aiordma.connect("127.0.0.1", listener.port, mode="rdma") as stream:
            await stream.send(b"hello")
            print(stream.path, await stream.receive())
        serving.cancel()
asyncio.run(main())
'''
def test_python(rdma_run):
    assert rdma_run(sys.executable, "-c", CODE).output.splitlines()[-1] == "rdma b'hello'"
"""


@pytest.mark.parametrize("test", [PINGPONG, RPING, IN_PYTHON], ids=["verbs", "rdma_cm", "aiordma"])
def test_programs_run_on_the_software_device(pytest_run: Callable[..., Run], test: str) -> None:
    done = pytest_run(test)
    assert done.status == 0, done.text


def test_a_run_without_its_fixtures_loads_nothing_of_aiordma(pytest_run: Callable[..., Run]) -> None:
    done = pytest_run(
        "def test_plain(): assert not [name for name in sys.modules if name.startswith('aiordma')]\n"
    )
    assert done.status == 0, done.text


SHELL = """
def test_shell(rdma_run):
    rdma_run("sh", "-c", {script!r})
"""


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo first; echo last >&2; exit 3", ["ended with exit status 3", "  first\n", "  last\n"]),
        ("kill -SEGV $$", ["was ended by SIGSEGV. Its output:", "  (nothing)"]),
        ("seq 100; exit 1", ["(the last 40 of 100 lines):", "  61\n", "  100\n"]),
    ],
    ids=["status", "signal", "long"],
)
def test_a_failure_says_how_the_program_ended_and_shows_its_output(
    pytest_run: Callable[..., Run], script: str, expected: list[str]
) -> None:
    done = pytest_run(SHELL.format(script=script))
    assert done.status == 1, done.text
    shown = done.text.replace("\nE ", "\n").replace("    ", "  ")
    assert [text for text in expected if text not in shown] == [], done.text


WAITS = """
def test_says(rdma_run):
    rdma_run.start("sh", "-c", "echo one; exec sleep 600").says("two", timeout=0.2)

def test_says_at_its_end(rdma_run):
    rdma_run.start("echo", "one").says("two")

def test_serves(rdma_run):
    rdma_run.start("sleep", "600").serves(timeout=0.2)

def test_ends(rdma_run):
    rdma_run("sleep", "600", timeout=0.2)

def test_the_server_fails(rdma_pair):
    rdma_pair(["sh", "-c", "echo no device; exit 1"], ["true"])

def test_the_server_fails_afterwards(rdma_pair):
    rdma_pair(["sh", "-c", "echo ready; exit 1"], ["true"], ready="ready")
"""


def test_each_wait_ends_and_says_what_did_not_come(pytest_run: Callable[..., Run]) -> None:
    done = pytest_run(WAITS)
    assert done.status == 1, done.text
    assert "6 failed" in done.text
    for text in (
        "has not said 'two' after 0.2 seconds. Its output:",
        "has not said 'two', and ended with exit status 0. Its output:",
        "listens on no TCP port and has no rdma_cm listener after 0.2 seconds",
        "has not ended after 0.2 seconds",
        "listens on no TCP port and has no rdma_cm listener, and ended with exit status 1",
        "ended with exit status 1. Its output:",
    ):
        assert text in done.text, done.text


LEFT = """
STUBBORN = '''
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
'''

def test_leaves(rdma_run):
    program = rdma_run.start("sh", "-c", '"$0" -c "$1" & echo child $! and; wait', sys.executable, STUBBORN)
    program.says("up")
    print("pids", program.pid, program.output.split("child ")[1].split(" and")[0])
"""


def is_running(pid: str) -> bool:
    """One that its parent has left is there until the first process of the system asks for its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_still_runs_is_ended_with_the_test(pytest_run: Callable[..., Run]) -> None:
    """A child, too, that its parent has left and that ignores SIGTERM."""
    done = pytest_run(LEFT, "-s")
    assert done.status == 0, done.text
    pids = done.text.split("pids ")[1].split()[:2]
    assert all(pid.isdigit() for pid in pids), pids
    assert [pid for pid in pids if is_running(pid)] == []


FAULTS = """
from pytest_softdev import FaultError

@pytest.mark.rdma_faults("seed=3,delay=0.1")
def test_by_mark(rdma_run):
    assert "SOFTDEV_FAULTS=seed=3,delay=0.1" in rdma_run("env").output.split()

def test_from_now_on(rdma_run, rdma_faults):
    assert "SOFTDEV_FAULTS=" in rdma_run("env").output.split()
    rdma_faults.set("error=1")
    program = ["ibv_rc_pingpong", "-d", "soft0", "-g", "0", "-p", "23509"]
    rdma_run.start(*program).serves()
    assert rdma_run(*program, "127.0.0.1", check=False).status != 0

def test_none(rdma_run):
    assert "SOFTDEV_FAULTS" not in rdma_run("env").output

def test_by_hand(rdma_run, rdma_faults):
    program = ["ibv_rc_pingpong", "-d", "soft0", "-g", "0", "-p", "23510"]
    serving = rdma_run.start(*program)
    serving.serves()
    assert "no faults" in rdma_faults.now(serving, "list")
    assert rdma_faults.now(serving, "qp=any at=1m").isdigit()
    assert "qp=any at=1m (begins in" in rdma_faults.now(serving.pid, "list")
    assert rdma_faults.now(serving, "clear") == "1 ended"
    with pytest.raises(FaultError, match="down or up"):
        rdma_faults.now(serving, "port=left")
    with pytest.raises(FaultError, match="at most"):
        rdma_faults.now(serving, "x" * 2000)
    rdma_faults.now(serving, "error=1")
    rdma_run.start(*program, "127.0.0.1")  # nobody tells it that its peer has failed: it may wait for ever
    assert serving.wait(check=False).status != 0
    with pytest.raises(FaultError, match="has ended"):
        rdma_faults.now(serving, "list")
"""


def test_faults_are_those_of_the_mark_and_of_the_moment(pytest_run: Callable[..., Run]) -> None:
    done = pytest_run(FAULTS, "--strict-markers")
    assert done.status == 0, done.text


PERSONALITIES = """
def vendor(rdma_run):
    return rdma_run("ibv_devinfo", "-d", "soft0").output.partition("vendor_id:")[2].split()[0]

@pytest.mark.rdma_personality("efa")
def test_by_mark(rdma_run):
    assert vendor(rdma_run) == "0x1d0f"

@pytest.mark.parametrize("rdma_personality", ["mlx5", "efa"], indirect=True)
def test_each(rdma_run, rdma_personality):
    assert vendor(rdma_run) == {"mlx5": "0x02c9", "efa": "0x1d0f"}[rdma_personality.name]

def test_from_now_on(rdma_run, rdma_personality):
    own = vendor(rdma_run)
    rdma_personality.set("efa")
    assert vendor(rdma_run) == "0x1d0f" != own
    with pytest.raises(ValueError, match="'efaa'; there are: bnxt_re efa"):
        rdma_personality.set("efaa")
    rdma_personality.set("soft")
    assert vendor(rdma_run) == own

@pytest.mark.rdma_personality("efa")
def test_what_the_card_does_not_do_fails(rdma_pair):
    program = ["ibv_rc_pingpong", "-d", "soft0", "-g", "0", "-p", "23511"]
    with pytest.raises(AssertionError, match="Couldn't create QP"):
        rdma_pair(program, [*program, "127.0.0.1"])

def test_none(rdma_run):
    assert "SOFTDEV_PERSONALITY" not in rdma_run("env").output
"""


def test_programs_have_the_personality_of_the_mark_and_of_the_moment(
    pytest_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOFTDEV_PERSONALITY", raising=False)
    done = pytest_run(PERSONALITIES, "--strict-markers")
    assert done.status == 0, done.text
    assert "6 passed" in done.text


def test_the_personalities_are_those_of_the_device() -> None:
    files = {path.stem for path in (ROOT / "softdev/personalities").glob("*.toml")}
    assert files == set(personality.NAMES)


REAL = """
def test_device(rdma_device, rdma_run):
    assert rdma_device[:3] == ("mlx5_7", "192.0.2.1", 3)
    environ = rdma_run("env").output
    assert "SOFTDEV_DEVICE=none" in environ and "LD_PRELOAD" not in environ

def test_faults(rdma_faults):
    assert False, "not reached"

@pytest.mark.rdma_personality("efa")
def test_personality(rdma_run):
    assert False, "not reached"
"""


def test_a_device_of_the_machine(pytest_run: Callable[..., Run]) -> None:
    options = ["--rdma-device", "mlx5_7", "--rdma-address", "192.0.2.1", "--rdma-gid-index", "3", "-rs"]
    done = pytest_run(REAL, *options)
    assert done.status == 0, done.text
    assert "1 passed, 2 skipped" in done.text
    assert "faults are the software device's, and --rdma-device names mlx5_7" in done.text
    assert "personalities are the software device's, and --rdma-device names mlx5_7" in done.text


def test_without_the_library_a_test_fails_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(pytest.fail.Exception, match=r"pip install aiordma\[pytest\]"):
        device.software_device()


def test_a_preloaded_library_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sanitizers and coverage are preloaded, too; the device's library is there once."""
    monkeypatch.setenv("LD_PRELOAD", "/lib/other.so")
    once = device.software_device()
    first = once.environment()["LD_PRELOAD"]
    assert first == f"{once.library}:/lib/other.so"
    monkeypatch.setenv("LD_PRELOAD", first)
    assert once.environment()["LD_PRELOAD"] == first


def test_names() -> None:
    """What a user writes in annotations."""
    assert {name for name in pytest_softdev.__all__ if not hasattr(pytest_softdev, name)} == set()
