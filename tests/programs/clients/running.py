"""Servers of other projects, and programs under `aiordma run`, each ended by its own process id."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.roles import LOCAL, free_port
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "LOCAL",
    "UNDER",
    "Running",
    "client",
    "environment",
    "free_port",
    "paths",
    "program",
    "server",
]

UNDER = [sys.executable, "-m", "aiordma", "run", "--report"]
_DEADLINE_S = 60


def program(name: str, *, also: str = "/usr/sbin") -> str:
    """The path of a program of Debian's; without it the test is left out."""
    found = shutil.which(name) or shutil.which(name, path=also)
    if found is None:
        pytest.skip(f"{name} is not installed (`make test-clients` does)")
    return found


def environment(folder: Path) -> dict[str, str]:
    """For programs under `aiordma run`: with a cache of their own."""
    return {**os.environ, "AIORDMA_DEVICE": DEVICE, "XDG_CACHE_HOME": str(folder), "PYTHONUNBUFFERED": "1"}


class Running:
    """A process whose output goes to a file."""

    def __init__(self, command: list[str], folder: Path, name: str, **options: object) -> None:
        self.log = folder / f"{name}.log"
        with self.log.open("w") as out:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=folder,
                env=environment(folder), **options,  # type: ignore[call-overload]
            )  # fmt: skip

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_until_listening(self, port: int) -> None:
        """Until something listens on the port. Nothing is sent to it."""
        until = time.monotonic() + _DEADLINE_S
        while not _listens(port):
            assert self.process.poll() is None, self.output
            assert time.monotonic() < until, self.output
            time.sleep(0.02)  # a file of the kernel's is looked at: it announces nothing

    def end(self, how: signal.Signals = signal.SIGINT) -> str:
        """End it, and return all that it has printed."""
        self.process.send_signal(how)
        self.process.wait(_DEADLINE_S)
        return self.output

    def kill(self) -> None:
        """Whatever its state is."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()


def _listens(port: int) -> bool:
    """Whether a socket of this network namespace listens, as /proc/net/tcp has it."""
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [line.split() for line in table][1:]
    return any(int(row[1].rpartition(":")[2], 16) == port and row[3] == "0A" for row in rows)


@contextlib.contextmanager
def server(command: list[str], port: int, folder: Path, name: str, **options: object) -> Iterator[Running]:
    """A server that listens on the port, ended with the block."""
    running = Running(command, folder, name, **options)
    try:
        running.wait_until_listening(port)
        yield running
    finally:
        running.kill()


def client(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a client to its end."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        cwd=folder,
        env=environment(folder),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def paths(report: str) -> dict[str, int]:
    """Connections by path, of a report at exit."""
    found: dict[str, int] = {}
    for path, count in re.findall(r"(?m)^  (rdma|tcp) +(\d+) ", report):
        found[path] = found.get(path, 0) + int(count)
    return found
