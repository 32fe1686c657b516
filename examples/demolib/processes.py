"""Start programs, read their output, and end each by its own process id."""

from __future__ import annotations

import ctypes
import signal
import socket
import subprocess
import threading

DEADLINE_S = 20.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class ProgramError(RuntimeError):
    """A program failed; the text contains its output."""


class Program:
    """A running process whose output is collected. It ends with this process, even if that is killed.

    Raises ProgramError unless the program prints a line that contains `ready` (`first_line`), OSError if the
    program does not exist."""

    def __init__(self, *args: str, ready: str) -> None:
        self.args = args
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            args,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,  # Ctrl-C reaches only this process, which ends the others in order
            preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
        )
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.first_line = self.wait_for(ready)
        except BaseException:
            self.stop(signal.SIGKILL)
            raise

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, text: str) -> str:
        """The first line of output, past or future, that contains `text`. Raises ProgramError."""

        def found() -> str | None:
            return next((line for line in self.lines if text in line), None)

        with self._news:
            self._news.wait_for(lambda: found() or not self._reader.is_alive(), DEADLINE_S)
        line = found()
        if line is None:
            raise ProgramError(f"{' '.join(self.args)}\ndid not say {text!r} but:\n{self.output}")
        return line

    def send_signal(self, number: int) -> None:
        """Send a signal if the process still runs."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send the signal, wait for the exit and return the status."""
        self.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Return the exit status. A program that does not end in time is killed."""
        try:
            status = self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self._reader.join(DEADLINE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()


def free_port() -> int:
    """Return a free port (redis-server cannot choose one itself)."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
