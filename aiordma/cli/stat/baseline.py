"""What ``aiordma stat --reset`` remembers for its caller: the totals of each process at that moment."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from ...admin.directory import started
from ...admin.messages import Engine, Totals

if TYPE_CHECKING:
    from ...admin.report import Report

#: Counters of an engine that are no maximum.
_COUNTERS = tuple(name for name in Engine.__struct_fields__ if name not in ("device", "slowest_poll_ns"))


#: Of the file.
_MOST_BYTES = 64 << 20


class _Taken(Struct):
    #: seconds since the epoch
    at: float
    #: of the process: its pid may be given again
    started: int
    totals: Totals


class Baseline(Struct):
    """By process id. Of several loops in a process the order counts."""

    taken: dict[int, list[_Taken]] = {}

    @staticmethod
    def _path() -> Path:
        """:raises FileNotFoundError: the user has no home."""
        try:
            folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        except RuntimeError:
            raise FileNotFoundError(errno.ENOENT, "this user has no home directory") from None
        return Path(folder) / "aiordma" / "stat.json"

    @classmethod
    def load(cls) -> Baseline:
        """The one of this user; an empty one if there is none."""
        try:
            return msgspec.json.decode(_read(cls._path()), type=cls)
        except (OSError, msgspec.DecodeError, RecursionError):
            return cls()

    def take(self, report: Report) -> None:
        """Count from this report on. :raises OSError: it cannot be stored."""
        self.taken = {
            pid: rows for pid, rows in self.taken.items() if rows and started(pid) == rows[0].started
        }
        fresh: dict[int, list[_Taken]] = {}
        for process in report.processes:
            if process.totals is not None:
                row = _Taken(report.taken_at, started(process.pid), process.totals)
                fresh.setdefault(process.pid, []).append(row)
        self.taken.update(fresh)
        path = self._path()
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, draft = tempfile.mkstemp(dir=path.parent)
        try:
            with open(fd, "wb") as file:
                file.write(msgspec.json.encode(self))
            os.replace(draft, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise

    def subtract(self, report: Report) -> None:
        """Let the totals count from the baseline on, where there is one."""
        seen: dict[int, int] = {}
        for process in report.processes:
            index = seen[process.pid] = seen.get(process.pid, -1) + 1
            rows = self.taken.get(process.pid, [])
            if process.totals is None or index >= len(rows) or rows[index].started != started(process.pid):
                continue
            process.since = rows[index].at
            _subtract(process.totals, rows[index].totals)


def _subtract(now: Totals, before: Totals) -> None:
    now.connections = {
        name: count - before.connections.get(name, 0) for name, count in now.connections.items()
    }
    now.fell_back -= before.fell_back
    now.left_rdma -= before.left_rdma
    now.slow_requests -= before.slow_requests
    now.slow_handlers -= before.slow_handlers
    now.leaks = {kind: count - before.leaks.get(kind, 0) for kind, count in now.leaks.items()}
    earlier = {engine.device: engine for engine in before.engines}
    for engine in now.engines:
        if (old := earlier.get(engine.device)) is not None:
            for name in _COUNTERS:
                setattr(engine, name, getattr(engine, name) - getattr(old, name))


def _read(path: Path) -> bytes:
    """What a file has, up to a limit; nothing of a pipe, which would not end. :raises OSError:"""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        return file.read(_MOST_BYTES) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
