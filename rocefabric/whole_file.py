"""Reports that tools write: a file is whole, or stays as it was."""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["make_folder", "write_whole"]


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file with the modes that the user's umask leaves. Pipes and devices, such as ``/dev/stdout``,
    are written to; so is a file in a folder that takes no new one.

    :raises click.ClickException: it cannot be written, because the disk is full, for example.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    try:
        _replace(os.path.realpath(path), data)
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from error


def make_folder(path: Path) -> None:
    """Make a folder for reports, if it is not there. :raises click.ClickException: it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"cannot make {path}: {error.strerror}") from error


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
