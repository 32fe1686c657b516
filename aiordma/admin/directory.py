"""Where processes put their admin sockets, and how tools find them and remove those of killed processes.

Each event loop has two files: ``PID-TOKEN.sock``, and ``PID-TOKEN.page`` (:mod:`.page`), which is a
``PID-TOKEN.draft`` until it is complete. Of a killed process the page stays for some minutes, as a
``PID-TOKEN.killed``, so that tools can tell of it. Their directory is the user's alone, mode 0700. It is
looked for as the software device does it (`softdev/src/core/home.c`): in ``$XDG_RUNTIME_DIR`` and
``/run/user/UID``, then in ``/dev/shm`` and ``/tmp``, where names that others have taken are passed over.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

SOCKET, PAGE, DRAFT, KILLED = ".sock", ".page", ".draft", ".killed"

#: Pages of killed processes that stay, and for how many seconds at most.
_MOST_KILLED, _KILLED_S = 64, 600.0

#: Of a user, so many pages of killed processes are read.
MOST_KILLED_READ = 4 * _MOST_KILLED
#: Of a directory, so many names are read. A loop has two.
_MOST_NAMES = 1 << 16

_SHARED = ("/dev/shm", "/tmp")
_NAMES = 8
#: Of another user, so many directories are looked into: those that he has, and some of containers, in which
#: he has another number.
_MOST_PLACES = 64
_RUNTIME = "/run/user"
_NUMBER = r"(?:0|[1-9]\d{0,9})"


class Directory:
    """A directory with admin sockets. Opened, so that it cannot be replaced afterwards; close it.

    :raises OSError: it is not there, or is not a directory that only ``uid`` may enter.
    """

    def __init__(self, path: str, uid: int) -> None:
        self.path, self.uid = path, uid
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if not _is_private(os.fstat(self._fd), uid):
            self.close()
            raise PermissionError(f"{path} is not a directory of user {uid} alone")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def address(self, name: str) -> str:
        """For bind() and connect(): short, however long the path is."""
        return f"/proc/self/fd/{self._fd}/{name}"

    def connect(self, sock: socket.socket, name: str) -> None:
        """To a socket that is here, and not where a link leads. :raises OSError:"""
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                raise ConnectionRefusedError(errno.ECONNREFUSED, "there is no socket of it")
            sock.connect(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)

    def open(self, name: str, flags: int) -> int:
        """A descriptor of a file in it. :raises OSError:"""
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._fd)

    def publish(self, name: str, final: str) -> None:
        """Give a file its final name at once. :raises OSError:"""
        os.rename(name, final, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def remove(self, stem: str) -> None:
        """Remove what belongs to one loop."""
        for suffix in (SOCKET, PAGE, DRAFT):
            with contextlib.suppress(OSError):
                os.unlink(stem + suffix, dir_fd=self._fd)

    def bury(self, stem: str) -> None:
        """Remove what belongs to a loop whose process was killed, but for its page, under another name."""
        with contextlib.suppress(OSError):
            os.rename(stem + PAGE, stem + KILLED, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        self.remove(stem)
        with contextlib.suppress(OSError):
            self._clear_killed()

    def _clear_killed(self) -> None:
        """:raises OSError:"""
        found = [(os.stat(each + KILLED, dir_fd=self._fd), each) for each in self.killed()]
        now = max((status.st_ctime for status, _ in found), default=0.0)  # one was renamed now
        found.sort(key=lambda each: -each[0].st_mtime)
        for number, (status, stem) in enumerate(found):
            if number >= _MOST_KILLED or now - status.st_mtime > _KILLED_S:
                os.unlink(stem + KILLED, dir_fd=self._fd)

    def killed(self) -> list[str]:
        """One for each loop that killed processes had."""
        return self._with(KILLED)[:MOST_KILLED_READ]

    def remove_drafts_of_the_dead(self) -> None:
        """A draft is one for microseconds; this is what processes have left that were killed meanwhile."""
        for name in os.listdir(self._fd):
            pid = name.partition("-")[0]
            if name.endswith(DRAFT) and pid.isdecimal() and not started(int(pid)):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=self._fd)

    def stems(self) -> list[str]:
        """One for each loop that has a page here."""
        return self._with(PAGE)

    def _with(self, suffix: str) -> list[str]:
        with os.scandir(self._fd) as entries:
            names = [entry.name for entry in itertools.islice(entries, _MOST_NAMES)]
        return sorted(name.removesuffix(suffix) for name in names if name.endswith(suffix))


def _is_private(found: os.stat_result, uid: int) -> bool:
    return stat.S_ISDIR(found.st_mode) and found.st_uid == uid and not found.st_mode & 0o077


def _bases(uid: int) -> Iterator[str]:
    """Directories of the user in which aiordma may have one."""
    for runtime in dict.fromkeys((os.environ.get("XDG_RUNTIME_DIR", ""), f"{_RUNTIME}/{uid}")):
        with contextlib.suppress(OSError):
            if runtime.startswith("/") and _is_private(os.lstat(runtime), uid):
                yield f"{runtime}/aiordma"
    yield from _shared_bases(uid)


def _shared_bases(uid: int) -> Iterator[str]:
    """Where anybody may make one."""
    for shared in _SHARED:
        for number in range(_NAMES):
            yield f"{shared}/aiordma-{uid}" + (f".{number}" if number else "")


def makeable() -> Iterator[Directory]:
    """The directories that this process's user may have, made if need be: the first one that is possible on
    each file system, as the first may have no room for a file. Close each."""
    uid, had = os.getuid(), set()
    for base in _bases(uid):
        parent = os.path.dirname(base)
        if parent in had:
            continue
        with contextlib.suppress(OSError):
            for path in (base, f"{base}/admin"):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(path, 0o700)
                Directory(path, uid).close()
            found = Directory(f"{base}/admin", uid)
            had.add(parent)
            yield found


def at(path: str, uid: int) -> Directory | None:
    """The directory, if it is there and that user's alone."""
    try:
        return Directory(path, uid)
    except OSError:
        return None


def places() -> Iterator[Directory]:
    """All that this user may look into: root sees everybody's. Close each."""
    uid = os.getuid()
    found = {f"{base}/admin": uid for base in _bases(uid)}
    if uid == 0:
        for owner, bases in _of_others().items():
            # Who makes directories without end only crowds out his own, and these come last.
            there = set(bases)
            usual = f"{_RUNTIME}/{owner}/aiordma", *_shared_bases(owner)
            own = [base for base in usual if base in there]
            for base in list(dict.fromkeys(own + bases))[:_MOST_PLACES]:
                found.setdefault(f"{base}/admin", owner)
    for path, owner in found.items():
        place = at(path, owner)
        if place is not None:
            yield place


def _of_others() -> dict[int, list[str]]:
    """Directories whose names may be aiordma's, by owner."""
    found: dict[int, list[str]] = {}
    for parent, pattern in (
        (_RUNTIME, _NUMBER),
        *((each, rf"aiordma-{_NUMBER}(\.[1-7])?") for each in _SHARED),
    ):
        with contextlib.suppress(OSError), os.scandir(parent) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if re.fullmatch(pattern, entry.name) and entry.is_dir(follow_symlinks=False):
                        owner = entry.stat(follow_symlinks=False).st_uid
                        base = f"{entry.path}/aiordma" if parent == _RUNTIME else entry.path
                        found.setdefault(owner, []).append(base)
    return found


# ---- processes


def namespace() -> int:
    """Of process ids: those of another one mean nothing here."""
    return os.stat("/proc/self/ns/pid").st_ino


def started(pid: int) -> int:
    """When a process began, in clock ticks since the boot: with the pid it names a process. 0: there is
    none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def is_running(pid: int, began: int) -> bool:
    """Whether the process that had this pid, and began then, is there."""
    return started(pid) == began


def has_thread(pid: int, thread: int) -> bool:
    """Whether the process has this thread; also if that cannot be seen."""
    return os.path.exists(f"/proc/{pid}/task/{thread}") or not os.path.exists(f"/proc/{pid}/task/{pid}")


def _status(pid: int, name: bytes) -> list[int]:
    """Numbers of a line of a process's status; none if there is no such process."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(name):
                return [int(number) for number in line.split()[1:]]
    return []


def user(pid: int) -> int | None:
    """Whose process it is (its real user id); None: there is none."""
    return next(iter(_status(pid, b"Uid:")), None)


def innermost(pid: int) -> int | None:
    """The number of a process in its own namespace of process ids; None: there is none."""
    return next(reversed(_status(pid, b"NSpid:")), None)
