"""What a person sees: a command on a pseudo-terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tests.processes import FULL_PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

_START = "import sys; from aiordma.cli.main import main; main(prog_name='aiordma')"


class Terminal:
    """A command that runs on one."""

    def __init__(self, fd: int, process: subprocess.Popen[bytes]) -> None:
        self._fd, self.process = fd, process
        self.seen = ""

    def until(self, pattern: str) -> re.Match[str]:
        """Read until this is on the screen."""
        deadline = time.monotonic() + FULL_PATIENCE
        while (found := re.search(pattern, self.seen)) is None:
            assert time.monotonic() < deadline, f"no {pattern!r} in:\n{self.seen}"
            assert self._read(1.0) is not False, f"it ended without {pattern!r}:\n{self.seen}"
        return found

    def _read(self, seconds: float) -> bool | None:
        """False at the end, None when nothing came."""
        if not select.select([self._fd], [], [], seconds)[0]:
            return None
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # the other side of the terminal is closed
            return False
        self.seen += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def end(self) -> int:
        """Its exit status."""
        deadline = time.monotonic() + FULL_PATIENCE
        while self._read(1.0) is not False and time.monotonic() < deadline:
            pass
        return self.process.wait(FULL_PATIENCE)


@contextlib.contextmanager
def terminal(*arguments: str, **environment: str) -> Iterator[Terminal]:
    """Run ``aiordma`` with these arguments."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _START, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_take_terminal,
            env={**os.environ, "TERM": "xterm", **environment},
        )
    finally:
        os.close(theirs)
    try:
        yield Terminal(ours, process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(ours)


def _take_terminal() -> None:
    """Ctrl-C of this terminal is this process's."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
