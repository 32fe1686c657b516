"""Programs that are started, listened to and ended, each by its own id."""

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
    """A program did not do what it should; the text has its output."""


class Program:
    """A running process. Its output is collected; it ends when we do, even if we are killed.

    Raises ProgramError unless a line with `ready` in it comes (`first_line`), OSError if there is no such
    program."""

    def __init__(self, *args: str, ready: str) -> None:
        self.args = args
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            args,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,  # Ctrl-C is for us; we end the others in order
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
        """The first line of output, so far or to come, that has `text` in it. Raises ProgramError."""

        def found() -> str | None:
            return next((line for line in self.lines if text in line), None)

        with self._news:
            self._news.wait_for(lambda: found() or not self._reader.is_alive(), DEADLINE_S)
        line = found()
        if line is None:
            raise ProgramError(f"{' '.join(self.args)}\ndid not say {text!r} but:\n{self.output}")
        return line

    def send_signal(self, number: int) -> None:
        """Sends a signal if it still runs."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends the signal and waits for the end; returns the exit status."""
        self.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """The exit status. A program that does not end in time is killed."""
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
    """A port nobody listens on (redis-server cannot choose one itself)."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
