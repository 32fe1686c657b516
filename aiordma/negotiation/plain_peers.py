"""Servers that turned out to be plain, remembered for the user's next programs.

The file (``plain-peers`` in the user's cache directory) has a line for each finding: until when it counts
(seconds since 1970; 0: not any more), host and port. Only what a server has said counts as a finding, and
none of a server on this host is kept. Processes append lines, which the kernel does one after the other; a
later line overrules an earlier one. A file that has grown is written anew, with the newest lines only. It is
a hint: whatever is wrong with it counts as empty, and a line that is lost costs one Proposal.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: Seconds for which a finding counts.
LIFETIME_S = 3600
#: Size from which on the file is written anew, and lines kept then.
_MAX_BYTES = 64 * 1024
_KEPT_LINES = 500
#: Longest name of a host, as in DNS.
_MAX_HOST = 255


def cache_file() -> str:
    """The path of the user's file, whose directory need not exist; empty if the user has no home."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return "" if cache.startswith("~") else os.path.join(cache, "aiordma", "plain-peers")


class PlainPeers:
    """The file, as it was read at the beginning, and what this process has added.

    It is read here, before there is an event loop as a rule: reading it later would have the loop wait for a
    disk, or for a server of files. A program that calls `aiordma.install()` in its loop waits for both there,
    this file and the modules.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = os.fspath(path)
        self._until = _parse(self._read())

    def is_plain(self, host: str, port: int) -> bool:
        """Whether this server was found to be plain, not long ago."""
        return time.time() < self._until.get((host, port), 0) <= time.time() + LIFETIME_S

    def suspect(self, host: str, port: int, seconds: int) -> None:
        """Take it for a plain one in this process: it has not answered."""
        if not self.is_plain(host, port):
            self._until[host, port] = time.time() + seconds

    def remember(self, host: str, port: int, plain: bool) -> None:
        """Note what a server has said, if it is news. Writes to the file: not for an event loop."""
        if self.is_plain(host, port) == plain or not _fits(host):
            return
        until = int(time.time()) + LIFETIME_S if plain else 0
        self._until[host, port] = until
        with contextlib.suppress(OSError):
            self._append(f"{until} {host} {port}\n".encode())

    def _read(self) -> bytes:
        """The file's lines; none if it is not the user's own."""
        try:
            # A pipe would keep the program waiting.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            status = os.fstat(descriptor)
            if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
                return b""
            return os.read(descriptor, 2 * _MAX_BYTES) if stat.S_ISREG(status.st_mode) else b""
        except OSError:
            return b""
        finally:
            os.close(descriptor)

    def _append(self, line: bytes) -> None:
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(self._path, flags, 0o600)
        try:
            os.write(descriptor, line)
            grown = os.fstat(descriptor).st_size > _MAX_BYTES
        finally:
            os.close(descriptor)
        if grown:
            self._write_anew()

    def _write_anew(self) -> None:
        now = time.time()
        valid = [(until, *peer) for peer, until in _parse(self._read()).items() if until > now]
        lines = [f"{int(until)} {host} {port}\n" for until, host, port in sorted(valid)[-_KEPT_LINES:]]
        temporary = f"{self._path}.{os.urandom(8).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(temporary, flags, 0o600), "w", encoding="ascii") as file:
                file.writelines(lines)
            os.replace(temporary, self._path)
        except OSError:  # a full disk, for example
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def _fits(host: str) -> bool:
    return host.isascii() and host.isprintable() and " " not in host and len(host) <= _MAX_HOST


def _parse(data: bytes) -> dict[tuple[str, int], float]:
    found: dict[tuple[str, int], float] = {}
    # Behind the last end of a line is nothing, or what a full disk has cut off.
    for line in data.decode("ascii", "replace").split("\n")[:-1]:
        with contextlib.suppress(ValueError):  # a line that is none
            until, host, port = line.split(" ")
            found[host, int(port)] = float(until)
    return found
