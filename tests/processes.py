"""Other processes for tests: started with a role (see ``program.py``), spoken to over pipes, ended by pid."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from tests import world
from tests.program import engines_now

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).parents[1]
#: For ``anyio.fail_after``, which stretches it in a slower place.
PATIENCE = world.PATIENCE
#: The same for those who do not wait by ``fail_after``.
FULL_PATIENCE = world.FULL_PATIENCE


class Forked:
    """A process that :class:`Forker` has started."""

    def __init__(self, forker: Forker, pid: int) -> None:
        self._forker = forker
        self.pid = pid

    def wait(self, timeout: float = FULL_PATIENCE) -> int:
        return self._forker.status(self.pid, timeout)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._forker.status(self.pid, 0)
        return None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class Forker:
    """A process that has imported everything, and forks those of the tests (``program.forked``)."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "tests.program", "--fork", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                cwd=_ROOT,
                pass_fds=[theirs.fileno()],
            )
        self._ended: dict[int, int] = {}
        atexit.register(self._end)

    def _end(self) -> None:
        self._orders.close()
        self._popen.wait()

    def _report(self) -> dict[str, int]:
        data = self._orders.recv(1 << 16)
        assert data, "the process that forks others has ended"
        report: dict[str, int] = json.loads(data)
        if "status" in report:
            self._ended[report["pid"]] = report["status"]
        return report

    def start(self, arguments: list[str], environment: dict[str, str], descriptors: list[int]) -> Forked:
        order = {"arguments": arguments, "environment": environment}
        socket.send_fds(self._orders, [json.dumps(order).encode()], descriptors)
        while "status" in (report := self._report()):
            pass
        self._ended.pop(report["pid"], None)  # of an earlier process with this number
        return Forked(self, report["pid"])

    def status(self, pid: int, timeout: float) -> int:
        """The exit status of a process. :raises subprocess.TimeoutExpired: it is still running."""
        until = time.monotonic() + timeout
        while pid not in self._ended:
            if not select.select([self._orders], [], [], max(0, until - time.monotonic()))[0]:
                raise subprocess.TimeoutExpired(str(pid), timeout)
            self._report()
        return self._ended[pid]


@functools.cache
def _forker() -> Forker:
    return Forker()


class Process:
    """A running role. Use :func:`process`."""

    def __init__(self, target: str, loop: str, env: dict[str, str], arguments: dict[str, Any]) -> None:
        self.target = target
        self._stderr = tempfile.TemporaryFile()
        its_input, writes = os.pipe()
        reads, its_output = os.pipe()
        self._reads, self._writes = open(reads, "rb", buffering=0), open(writes, "wb", buffering=0)
        try:
            self._process = self.start(
                [target, loop, json.dumps(arguments)],
                {**os.environ, **env},
                [its_input, its_output, self._stderr.fileno()],
            )
        finally:
            os.close(its_input)
            os.close(its_output)
        self._buffer = b""
        self.pid = self._process.pid
        self._expected = {0}

    def start(
        self, arguments: list[str], environment: dict[str, str], descriptors: list[int]
    ) -> Forked | subprocess.Popen[bytes]:
        return _forker().start(arguments, environment, descriptors)

    # ---- conversation

    def say(self, value: object) -> None:
        self._writes.write(json.dumps(value).encode() + b"\n")

    def hush(self) -> None:
        """Say nothing more: most roles end then."""
        self._writes.close()

    def _line(self) -> Any:
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def _fill(self) -> None:
        data = os.read(self._reads.fileno(), 65536)
        if not data:
            raise AssertionError(f"{self.target} said nothing more; its stderr:\n{self.stderr()}")
        self._buffer += data

    def hear(self) -> Any:
        """The role's next value. For tests that are no coroutines."""
        until = time.monotonic() + FULL_PATIENCE
        while b"\n" not in self._buffer:
            if not select.select([self._reads], [], [], max(0, until - time.monotonic()))[0]:
                raise AssertionError(f"{self.target} is silent; {self._state()}")
            self._fill()
        return self._line()

    async def heard(self) -> Any:
        """The role's next value."""
        try:
            with anyio.fail_after(PATIENCE):
                while b"\n" not in self._buffer:
                    await anyio.wait_readable(self._reads)
                    self._fill()
        except TimeoutError:
            raise AssertionError(f"{self.target} is silent; {self._state()}") from None
        return self._line()

    def _state(self) -> str:
        """What it says that it is doing, which takes it a moment."""
        os.kill(self.pid, signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        return f"its stderr:\n{self.stderr()}"

    def stderr(self) -> str:
        return os.pread(self._stderr.fileno(), 1 << 20, 0).decode(errors="replace")

    # ---- end

    def kill(self, number: int = signal.SIGKILL) -> None:
        self._expected.add(-number)
        os.kill(self.pid, number)

    def expect(self, status: int) -> None:
        """It ends by itself, with this status, and not with 0."""
        self._expected = {status}

    def forgive(self) -> None:
        """Its peer was ended: it may fail, and how is another test's matter."""
        self._expected.add(1)

    def wait(self) -> int:
        """The exit status; minus the signal's number where one ended the process."""
        try:
            return self._process.wait(FULL_PATIENCE)
        except subprocess.TimeoutExpired:
            here = engines_now()
            raise AssertionError(
                f"{self.target} does not end; {self._state()}\nthis process:\n{here}"
            ) from None

    def end(self, *, check: bool) -> None:
        with contextlib.suppress(OSError):
            self._writes.close()
        try:
            if check:
                status = self.wait()
                assert status in self._expected, f"{self.target}: status {status}\n{self.stderr()}"
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._reads.close()
            self._stderr.close()


@contextlib.contextmanager
def process(
    target: str,
    loop: str = "asyncio",
    env: dict[str, str] | None = None,
    of: type[Process] = Process,
    **arguments: object,
) -> Iterator[Process]:
    """Run ``module:function`` with ``arguments`` in a process of its own. It must end well by itself when
    the block is left, unless the test killed it."""
    started = of(target, loop, env or {}, arguments)
    try:
        yield started
    except BaseException:
        started.end(check=False)
        raise
    started.end(check=True)
