"""A cgroup with little memory, within the test's own, where one can be made: by root, in a writable mount."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes import FULL_PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path("/sys/fs/cgroup")


class Cgroup:
    """One with a limit for its memory; memfds count."""

    def __init__(self, path: Path, limit: str, kills: str) -> None:
        self.path, self._limit, self._kills = path, path / limit, path / kills

    def limit(self, size: int) -> None:
        self._limit.write_text(str(size))

    def take(self, pid: int) -> None:
        """What it allocates from now on counts."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def killed(self) -> int:
        """Processes that the kernel has ended for want of memory."""
        found = dict(line.split() for line in self._kills.read_text().splitlines())
        return int(found["oom_kill"])

    def remove(self) -> None:
        """Once its processes have ended, which the kernel may notice a moment later."""
        deadline = time.monotonic() + FULL_PATIENCE
        while True:
            try:
                self.path.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                return


def _own(controller: str) -> str:
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.lstrip("/")
    raise FileNotFoundError(controller)


def _made() -> Cgroup:
    """:raises OSError: none can be made."""
    name = f"aiordma-test-{os.getpid()}"
    if (_ROOT / "memory").is_dir():
        path = _ROOT / "memory" / _own("memory") / name
        path.mkdir()
        return Cgroup(path, "memory.limit_in_bytes", "memory.oom_control")
    parent = _ROOT / _own("")
    (parent / "cgroup.subtree_control").write_text("+memory")
    path = parent / name
    path.mkdir()
    return Cgroup(path, "memory.max", "memory.events")


@contextlib.contextmanager
def little_memory() -> Iterator[Cgroup]:
    """Skips the test where there is none."""
    try:
        made = _made()
    except OSError as error:
        pytest.skip(f"no cgroup for memory can be made: {error}")
    try:
        yield made
    finally:
        made.remove()
