"""Received files in a directory. Whatever a peer sends, no file outside the directory changes, and no
incomplete file gets its final name."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from typing import TYPE_CHECKING

from .wire import BLOCK_BYTES, MAX_BLOCKS

if TYPE_CHECKING:
    from collections.abc import Iterator


class Refused(Exception):
    """The file cannot be received; the text gives the peer the reason."""


def block_digest(block: bytes) -> str:
    """The digest that both sides use to compare blocks of a partial file."""
    return hashlib.blake2b(block, digest_size=16).hexdigest()


def check_name(name: str) -> str:
    """Return the name if it names a plain visible file in the directory. Raises Refused."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise Refused("the name is no valid text") from None
    if "/" in name or "\\" in name:
        raise Refused(f"{name!r}: only names without directories are taken")
    if not name or name.startswith("."):
        raise Refused(f"{name!r}: empty, hidden and relative names are not taken")
    if not name.isprintable():
        raise Refused(f"{name!r}: a name with unprintable characters")
    if size > 240:
        raise Refused(f"a name of {size} bytes (limit 240)")
    return name


class Partial:
    """The received part of a file: `.NAME.part`, locked while in use.

    The methods block on disk I/O; call them in a thread. They raise Refused and OSError.
    """

    def __init__(self, directory: str, name: str) -> None:
        self.name = check_name(name)
        self._part = f".{self.name}.part"
        self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            self._file = os.open(self._part, flags, 0o666, dir_fd=self._directory)
        except BaseException:
            os.close(self._directory)
            raise
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise Refused(f"{self._part!r} is there and no file")
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Refused(f"{self.name!r} is just being received from another sender") from None
            if os.path.isdir(os.path.join(directory, self.name)):
                raise Refused(f"{self.name!r} is a directory here")
        except BaseException:
            self.close()
            raise
        self._hash = hashlib.sha256()
        self.size = 0

    def blocks(self) -> tuple[int, list[str]]:
        """Return how many bytes have arrived, and the digests of their blocks (the last may be short)."""
        digests = []
        size = 0
        for block in self._read(BLOCK_BYTES * MAX_BLOCKS):
            digests.append(block_digest(block))
            size += len(block)
        return size, digests

    def start_at(self, start: int) -> None:
        """Keep the first `start` bytes and discard the rest."""
        self._hash = hashlib.sha256()
        self.size = 0
        for block in self._read(start):
            self._hash.update(block)
            self.size += len(block)
        if self.size != start:
            raise Refused(f"only {self.size} bytes are here, not {start}")
        os.ftruncate(self._file, start)
        os.lseek(self._file, start, os.SEEK_SET)

    def append(self, pieces: list[bytes]) -> None:
        """Append bytes."""
        for piece in pieces:
            self._hash.update(piece)
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            self.size += len(piece)

    def finish(self, sha256: str) -> None:
        """Give the file its name. If the digest differs, delete the file and raise Refused."""
        if self._hash.hexdigest() != sha256:
            os.unlink(self._part, dir_fd=self._directory)
            raise Refused(f"{self.name!r}: the digest does not agree, the copy was thrown away")
        os.fsync(self._file)
        os.rename(self._part, self.name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        os.fsync(self._directory)

    def close(self) -> None:
        """Keep the received part for the next attempt."""
        os.close(self._file)
        os.close(self._directory)

    def _read(self, limit: int) -> Iterator[bytes]:
        os.lseek(self._file, 0, os.SEEK_SET)
        while limit and (block := _read_block(self._file, min(BLOCK_BYTES, limit))):
            limit -= len(block)
            yield block


def _read_block(file: int, size: int) -> bytes:
    """Read `size` bytes, fewer only at the end of the file."""
    pieces = []
    while size and (piece := os.read(file, size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
