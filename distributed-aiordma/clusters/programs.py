"""``dask scheduler`` and ``dask worker`` as programs, for tests and for the benchmark."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["program", "scheduler_address"]


@contextlib.contextmanager
def program(
    *arguments: str, log: Path, prefix: Sequence[str] = (), **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """``dask ARGUMENTS``, ended afterwards.

    :param log: where its output goes.
    :param prefix: a command that runs it, such as ``ip netns exec NAME``.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "dask", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def scheduler_address(file: Path, process: subprocess.Popen[bytes], seconds: float = 60) -> str:
    """What ``dask scheduler --scheduler-file FILE`` has written."""
    deadline = time.monotonic() + seconds
    while True:
        assert process.poll() is None, "the scheduler has ended"
        assert time.monotonic() < deadline, "no scheduler"
        with contextlib.suppress(OSError, ValueError):
            return str(json.loads(file.read_text())["address"])
        time.sleep(0.05)
