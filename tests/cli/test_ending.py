"""Commands that are ended by a signal leave nothing behind, and end by it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from aiordma.cli.ending import cleaned_up
from tests.health import until
from tests.processes import FULL_PATIENCE
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")

SIGNALS = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]


def started(place: Path, *words: str, before: Callable[[], None] | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "aiordma", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(place), "AIORDMA_DEVICE": DEVICE},
        preexec_fn=before or (lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)),
    )


def ended(process: subprocess.Popen[bytes], number: signal.Signals) -> int:
    try:
        process.send_signal(number)
        return process.wait(FULL_PATIENCE)
    finally:
        process.kill()


@pytest.fixture
def place() -> Iterator[Path]:
    """One whose path is short, as that of a machine's own: a Unix socket is made in it."""
    with tempfile.TemporaryDirectory(prefix="ending-") as folder:
        yield Path(folder)


@pytest.mark.parametrize("loop", [[], ["--uvloop"]], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("number", SIGNALS)
def test_the_server_of_measurements(place: Path, number: signal.Signals, loop: list[str]) -> None:
    with started(place, "serve-diagnostics", "--port", "0", *loop) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith(b"listening on ")
        assert len(os.listdir(place)) == 1
        status = ended(server, number)
    assert status == (0 if number is signal.SIGINT else -number)
    assert os.listdir(place) == []


def test_where_the_folder_for_temporary_files_is_deep(tmp_path: Path) -> None:
    """No Unix socket can have a path that is so long: it goes elsewhere."""
    deep = tmp_path.joinpath(*["a folder in a folder"] * 6)
    deep.mkdir(parents=True)
    with started(deep, "serve-diagnostics", "--port", "0") as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith(b"listening on ")
        assert ended(server, signal.SIGTERM) == -signal.SIGTERM
    assert os.listdir(deep) == []


@pytest.mark.parametrize("number", SIGNALS)
def test_the_demo(place: Path, number: signal.Signals) -> None:
    with started(place, "demo", "latency", "--seconds", "60") as demo:
        children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children")
        anyio.run(until, lambda: os.listdir(place) and children.read_text())
        status = ended(demo, number)
    assert status == (1 if number is signal.SIGINT else -number)  # "Aborted!"
    assert os.listdir(place) == []


def _in_the_background() -> None:
    """As a shell without job control starts it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def test_where_ctrl_c_is_ignored(place: Path) -> None:
    with started(place, "serve-diagnostics", "--port", "0", before=_in_the_background) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith(b"listening on ")
        assert ended(server, signal.SIGTERM) == -signal.SIGTERM
    assert os.listdir(place) == []


def test_what_is_ignored_and_handled_stays_so() -> None:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with cleaned_up():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not before[signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, before[signal.SIGHUP])
    assert {number: signal.getsignal(number) for number in SIGNALS} == before
