"""Reports that tools write: a file is whole, or stays as it was."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["make_folder", "write_whole"]


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file with the modes that the user's umask leaves. Pipes and devices, such as ``/dev/stdout``,
    are written to; so is a file in a folder that takes no new one.

    :raises click.ClickException: it cannot be written, because the disk is full, for example, or is a link
        that another user has made.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        _check_link(path)
        is_special = path.exists() and not path.is_file()
        if not is_special:
            _replace(os.path.realpath(path), data)
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from error
    if is_special:
        path.write_bytes(data)


def make_folder(path: Path) -> None:
    """Make a folder for reports, if it is not there. :raises click.ClickException: it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"cannot make {path}: {error.strerror}") from error


def _check_link(path: Path) -> None:
    """In a folder that all may write to, such as /tmp, it may lead anywhere."""
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode) and found.st_uid not in (os.geteuid(), 0):
            raise PermissionError(errno.EPERM, "it is another user's link")


def _replace(path: str, data: bytes) -> None:
    folder, name = os.path.split(path)
    draft = os.path.join(folder, f".{name[:200]}.{secrets.token_hex(8)}")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except PermissionError:
        with open(path, "wb") as file:
            file.write(data)
        return
    try:
        with open(fd, "wb") as file:
            file.write(data)
        with contextlib.suppress(FileNotFoundError):
            os.chmod(draft, os.stat(path).st_mode & 0o777)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
