"""Files that tools write for their user alone: they may hold secrets, and the folder may be anybody's."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO


@contextlib.contextmanager
def private_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a file whole, or not at all: a draft with a name that cannot be guessed takes its place at the
    end. Pipes and devices, such as ``/dev/stdout``, are written to.

    :raises OSError: it cannot be written, is another user's, or is a link that another user has made.
    """
    if _is_special(path):
        with open(os.open(path, os.O_WRONLY | os.O_CLOEXEC), "wb") as file:
            yield file
        return
    path = Path(os.path.realpath(path))
    fd, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # O_EXCL, and 0600
    try:
        with open(fd, "wb") as file:
            yield file
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


def _is_special(path: Path) -> bool:
    """Whether it is there, and neither a file nor a link to one. :raises OSError: it is not to be trusted."""
    try:
        found = os.lstat(path)
        is_device = stat.S_ISCHR(found.st_mode)  # such as a terminal
        if found.st_uid not in (os.geteuid(), 0) and not is_device:
            raise PermissionError(errno.EPERM, "it is another user's")
        return not stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False
