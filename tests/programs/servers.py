"""Programs that a suite's tests talk to: redis-server, and the example proxy in front of it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from .suite import ROOT, Suite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["proxied", "server_of", "streams_of_proxy"]

#: redis-server's usual port, and those of the proxy's two halves.
_REDIS, _FRONT, _BACK = 6379, 6380, 6381
#: Seconds until a program listens.
_PATIENCE = 30.0


@contextlib.contextmanager
def server_of(suite: Suite) -> Iterator[None]:
    """The server that the tests expect at its usual port; and the proxy, if they are to go through it.

    :raises RuntimeError: one of them did not begin to listen.
    """
    with contextlib.ExitStack() as stack:
        if suite.server is not None and not _listens(_REDIS):
            local = ["--port", str(_REDIS), "--bind", "127.0.0.1"]
            command = [suite.server, *local, "--save", "", "--enable-debug-command", "yes"]
            stack.enter_context(_running(command, _REDIS, suite.folder / "server.log"))
        if suite.proxy:
            program = [sys.executable, str(ROOT / "examples/redis_proxy.py")]
            back = ["back", "--listen", f"127.0.0.1:{_BACK}", "--redis", f"127.0.0.1:{_REDIS}"]
            front = ["front", "--listen", f"127.0.0.1:{_FRONT}", "--to", f"127.0.0.1:{_BACK}"]
            stack.enter_context(_running([*program, *back], _BACK, suite.folder / "back.log"))
            process = stack.enter_context(_running([*program, *front], _FRONT, _front_log(suite)))
            stack.callback(_ask_for_statistics, process, suite)
        yield


def proxied() -> list[str]:
    """Options of redis-py's tests for the proxy."""
    return ["--redis-url", f"redis://127.0.0.1:{_FRONT}/0"]


def streams_of_proxy(suite: Suite) -> int:
    """How many streams by RDMA it has opened."""
    text = _front_log(suite).read_text(errors="replace")
    found = re.findall(r"(\d+) streams opened so far", text)
    return int(found[-1]) if found and "travel by rdma" in text else 0


def _front_log(suite: Suite) -> Path:
    return suite.folder / "front.log"


def _ask_for_statistics(process: subprocess.Popen[bytes], suite: Suite) -> None:
    process.send_signal(signal.SIGUSR1)
    until = time.monotonic() + _PATIENCE
    while not streams_of_proxy(suite) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)  # it writes them to its log


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def _running(command: list[str], port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    environ = {**os.environ, "AIORDMA_DEVICE": "soft"}
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environ, stdout=out, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + _PATIENCE
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{command[0]} does not listen on port {port}, see {log}")
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        process.wait()
