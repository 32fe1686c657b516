"""The page of one event loop: a small file that its timer writes, so that tools see a loop that has stopped.

Readers take it for what any process of its owner may have written: they check lengths and names. It is
not mapped: its file system may be full, and others may cut it off, which would end the process with SIGBUS.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from . import directory

if TYPE_CHECKING:
    from .directory import Directory

#: How often the loop writes.
BEAT_SECONDS = 1.0

_MAGIC = b"aiordma1"
#: Magic, generation, pid, pid namespace, start, beat, connections, completions; then loop and program.
_FIXED = struct.Struct("=8sQQQQQQQ16s256s")
_END = struct.Struct("=Q")
#: The loop's thread, as the system numbers it, and when the loop returned (0: it runs). Older builds write
#: zeros.
_RUN = struct.Struct("=QQ")
_RUN_AT = _FIXED.size + _END.size
_BYTES = 4096


class Page(NamedTuple):
    """What one said when it was read."""

    pid: int
    #: inode of the namespace of process ids
    namespace: int
    #: see :func:`.directory.started`
    started: int
    #: ``time.monotonic_ns()`` of the host when the loop's timer came by
    beat_ns: int
    connections: int
    #: work completions of its engines
    completions: int
    #: asyncio, uvloop or trio
    loop: str
    program: str
    #: the system's number of the loop's thread in its namespace; 0: not known
    thread: int = 0
    #: ``time.monotonic_ns()`` when the loop returned, and was not closed; 0: it runs, or has not told
    returned_ns: int = 0

    @property
    def returned_s(self) -> float:
        """Seconds since the loop returned; 0: it has not, as far as it has told."""
        return max(0.0, (time.monotonic_ns() - self.returned_ns) / 1e9) if self.returned_ns else 0.0

    @property
    def thread_is_over(self) -> bool:
        """The loop's thread is gone, as far as can be told from here."""
        return (
            self.thread != 0
            and self.namespace == directory.namespace()
            and not directory.has_thread(self.pid, self.thread)
        )

    @property
    def silent_s(self) -> float:
        """Seconds since the loop came by."""
        return max(0.0, (time.monotonic_ns() - self.beat_ns) / 1e9)

    @property
    def process(self) -> tuple[int, int, int]:
        """What names its process: a pid alone is given again, and there is one in each namespace."""
        return self.namespace, self.pid, self.started

    @property
    def is_own(self) -> bool:
        """It is of this process."""
        return (self.namespace, self.pid) == (directory.namespace(), os.getpid())

    def is_possible(self, uid: int) -> bool:
        """Whether a process of this user may have written it: it may name anybody's. (Root's files are
        trusted: a process may have become somebody else after it began.)"""
        return uid == 0 or self.namespace != directory.namespace() or directory.user(self.pid) == uid

    def is_of(self, pid: int, uid: int) -> bool:
        """Whether it is that of a process which has this number here.

        :param uid: whose files it is among.
        """
        if self.namespace == directory.namespace():
            return pid == self.pid and self.is_possible(uid) and not self.is_over
        # That process, or the one that asks, is in a container. It may have no number here.
        return pid == 0 or (directory.innermost(pid) == self.pid and (uid == 0 or directory.user(pid) == uid))

    @property
    def is_over(self) -> bool:
        """The process is gone, as far as can be told from here."""
        return self.namespace == directory.namespace() and not directory.is_running(self.pid, self.started)


def program() -> str:
    """What this process runs, without its arguments, which may be secret."""
    name = sys.argv[0] if sys.argv else ""
    if name in ("-c", "-m", ""):
        return os.path.basename(sys.executable or "python")
    if os.path.basename(name) == "__main__.py":
        name = os.path.dirname(name)
    return os.path.basename(name)


class PageWriter:
    """The page of this loop; close it. :raises OSError: there is no room for it, for example."""

    def __init__(self, home: Directory, stem: str, loop: str) -> None:
        self._names = loop.encode()[:16], program().encode("utf-8", "replace")[:256]
        self._ids = os.getpid(), directory.namespace(), directory.started(os.getpid())
        self._generation = self._thread = self._returned_ns = 0
        self._data = bytearray(_BYTES)
        draft = stem + directory.DRAFT
        self._fd = home.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            self._write(0, 0)
            home.publish(draft, stem + directory.PAGE)
        except BaseException:
            self.close()
            home.remove(stem)
            raise

    def beat(self, connections: int, completions: int) -> None:
        """The loop has come by. What cannot be written is not: the page looks as old as it is then."""
        self._thread, self._returned_ns = threading.get_native_id(), 0
        with contextlib.suppress(OSError):
            self._write(connections, completions)

    def ran(self, running: bool) -> None:
        """The loop begins to run, or returns: with what cannot be written it looks stuck at worst. Short, for
        there are programs whose every request is a run of its own."""
        if running == (self._returned_ns == 0) or self._fd < 0:
            return
        self._returned_ns = 0 if running else time.monotonic_ns()
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, _END.pack(self._returned_ns), _RUN_AT + _RUN.size - _END.size)

    def _write(self, connections: int, completions: int) -> None:
        """:raises OSError:"""
        self._generation += 1
        numbers = self._generation, *self._ids, time.monotonic_ns(), connections, completions
        _FIXED.pack_into(self._data, 0, _MAGIC, *numbers, *self._names)
        # What is read while this is written has two generations.
        _END.pack_into(self._data, _FIXED.size, self._generation)
        _RUN.pack_into(self._data, _RUN_AT, self._thread, self._returned_ns)
        if os.pwrite(self._fd, self._data, 0) != _BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read(home: Directory, stem: str, suffix: str = directory.PAGE) -> Page | None:
    """The page of a loop; None: there is none, or it is not one."""
    try:
        fd = home.open(stem + suffix, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        for _ in range(3):
            data = os.pread(fd, _BYTES, 0)
            page = _parse(data)
            if page is not None:
                return page
        return None
    except OSError:
        return None
    finally:
        os.close(fd)


def _parse(data: bytes) -> Page | None:
    if len(data) != _BYTES or not data.startswith(_MAGIC):
        return None
    _, generation, pid, namespace, started, beat, connections, completions, loop, name = _FIXED.unpack_from(
        data
    )
    if _END.unpack_from(data, _FIXED.size)[0] != generation:
        return None
    names = _text(loop), _text(name)
    run = _RUN.unpack_from(data, _RUN_AT)
    return Page(pid, namespace, started, beat, connections, completions, *names, *run)


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode("utf-8", "replace")
