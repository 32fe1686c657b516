"""Programs of a test: started on the device, waited for, and ended with the test."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, NamedTuple

from .listening import listens, members

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from .device import Device
    from .faults import Faults
    from .personality import Personality

#: Seconds that a program is waited for.
TIMEOUT = 60.0
#: Seconds between two looks at what a program has done.
_STEP = 0.01
#: Seconds from SIGTERM to SIGKILL.
_MERCY = 2.0
#: Lines of a program's output in an error.
_SHOWN = 40


class Failed(AssertionError):
    """A program ended badly, said nothing in time, or never ended. The text has the end of its output."""


class Ended(NamedTuple):
    """What a program has left."""

    #: Exit status; -N: it was ended by signal N.
    status: int
    #: What it wrote to standard output and standard error, in the order in which it was written.
    output: str


class Program:
    """A program that was started. It leads a session of its own, so its children end with it."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], log: Path, cwd: Path | None) -> None:
        self.argv = list(argv)
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                self.argv,
                env=environ,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the program; its session has the same number."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def output(self) -> str:
        """What it has written so far. A program whose output is no terminal may hold back what it prints."""
        return self._log.read_text("utf-8", "replace")

    def wait(self, timeout: float = TIMEOUT, *, check: bool = True) -> Ended:
        """Until it has ended.

        :param timeout: in seconds.
        :param check: whether an exit status other than 0 is a failure.
        :raises Failed: it has not ended in time, or badly.
        """
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise self._failed(f"has not ended after {timeout:g} seconds") from None
        if check and status:
            raise self._failed(_how_it_ended(status))
        return Ended(status, self.output)

    def says(self, text: str, timeout: float = TIMEOUT) -> str:
        """Until the text is in its output, which is returned.

        :raises Failed: it does not say so, in time or before its end.
        """
        self._until(lambda: text in self.output, f"has not said {text!r}", timeout)
        return self.output

    def serves(self, timeout: float = TIMEOUT) -> None:
        """Until it, or a child of it, listens: on a TCP port, or by rdma_cm on the software device.

        :raises Failed: it does not, in time or before its end.
        """
        self._until(lambda: listens(self.pid), "listens on no TCP port and has no rdma_cm listener", timeout)

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to it and its children."""
        # Each by itself: once the program is waited for, its number may be another's, but not its session's.
        for pid in members(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def end(self) -> None:
        """End it and its children: asked at first, two seconds later by force."""
        if self.running:
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_MERCY)
        self.signal(signal.SIGKILL)  # also to children that outlive it
        self._process.wait()
        deadline = time.monotonic() + _MERCY
        while members(self.pid) and time.monotonic() < deadline:
            time.sleep(_STEP)  # the kernel is about to end them

    def _until(self, holds: Callable[[], bool], otherwise: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not holds():
            # What it said or did last may have come between both looks.
            if not self.running and not holds():
                raise self._failed(f"{otherwise}, and {_how_it_ended(self._process.returncode)}")
            if time.monotonic() > deadline:
                raise self._failed(f"{otherwise} after {timeout:g} seconds")
            time.sleep(_STEP)

    def _failed(self, what: str) -> Failed:
        lines = self.output.splitlines()
        shown = "\n".join(f"  {line}" for line in lines[-_SHOWN:]) or "  (nothing)"
        return Failed(f"{' '.join(self.argv)}\n{what}. Its output{_left_out(len(lines))}:\n{shown}")


class Programs:
    """The fixture ``rdma_run``: called, it runs a program to its end; ``start()`` only starts it."""

    def __init__(
        self, device: Device, faults: Faults | None, personality: Personality | None, folder: Path
    ) -> None:
        self._device = device
        self._faults = faults
        self._personality = personality
        self._folder = folder
        self._started: list[Program] = []

    def __call__(
        self,
        *argv: str | os.PathLike[str],
        timeout: float = TIMEOUT,
        check: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> Ended:
        """Run a program on the device until it has ended.

        :param timeout: in seconds.
        :param check: whether an exit status other than 0 is a failure.
        :param env: variables beside those of this process.
        :raises Failed: it has not ended in time, or badly. The test's end ends it.
        """
        return self.start(*argv, env=env).wait(timeout, check=check)

    def start(
        self,
        *argv: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Program:
        """Start a program on the device. It is ended with the test.

        :raises FileNotFoundError: there is no such program.
        """
        environ = {**self._device.environment(), **(env or {})}
        if self._faults is not None:
            environ["SOFTDEV_FAULTS"] = self._faults.spec
        if self._personality is not None:
            environ["SOFTDEV_PERSONALITY"] = self._personality.name
        log = self._folder / f"program-{len(self._started)}.txt"
        program = Program([os.fspath(word) for word in argv], environ, log, cwd)
        self._started.append(program)
        return program

    def end(self) -> None:
        """End all that still run, the last one first."""
        for program in reversed(self._started):
            program.end()


class Pair:
    """The fixture ``rdma_pair``."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    def __call__(
        self,
        server: Sequence[str | os.PathLike[str]],
        client: Sequence[str | os.PathLike[str]],
        *,
        ready: str | None = None,
        timeout: float = TIMEOUT,
    ) -> tuple[Ended, Ended]:
        """Start the server; when it serves, the client; wait until both have ended well.

        :param ready: what the server says when it serves. None: it serves as soon as it listens.
        :param timeout: in seconds, for each of these waits.
        :raises Failed: of the one that failed.
        """
        serving = self._programs.start(*server)
        if ready is None:
            serving.serves(timeout)
        else:
            serving.says(ready, timeout)
        asking = self._programs.start(*client)
        end = asking.wait(timeout)
        return serving.wait(timeout), end


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def _left_out(lines: int) -> str:
    return f" (the last {_SHOWN} of {lines} lines)" if lines > _SHOWN else ""
