"""Other processes for tests: started with a role (see ``program.py``), spoken to over pipes, ended by pid."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from tests.world import SLOWER

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).parents[1]
#: Longer than anything takes that works, also on a machine with much else to do. For ``anyio.fail_after``,
#: which stretches it in a slower place.
PATIENCE = float(os.environ.get("AIORDMA_TEST_PATIENCE", "30"))
#: The same for those who do not wait by ``fail_after``.
FULL_PATIENCE = PATIENCE * SLOWER


class Process:
    """A running role. Use :func:`process`."""

    def __init__(self, target: str, loop: str, env: dict[str, str], arguments: dict[str, Any]) -> None:
        self.target = target
        self._stderr = tempfile.TemporaryFile()
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.program", target, loop, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            cwd=_ROOT,
            env={**os.environ, **env},
            bufsize=0,
        )
        assert self._popen.stdout is not None
        assert self._popen.stdin is not None
        self._reads, self._writes = self._popen.stdout, self._popen.stdin
        self._buffer = b""
        self.pid = self._popen.pid
        self._expected = {0}

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
            self._popen.wait(1)
        return f"its stderr:\n{self.stderr()}"

    def stderr(self) -> str:
        return os.pread(self._stderr.fileno(), 1 << 20, 0).decode(errors="replace")

    # ---- end

    def kill(self, number: int = signal.SIGKILL) -> None:
        self._expected.add(-number)
        os.kill(self.pid, number)

    def forgive(self) -> None:
        """Its peer was ended: it may fail, and how is another test's matter."""
        self._expected.add(1)

    def wait(self) -> int:
        """The exit status, as of :class:`subprocess.Popen`."""
        try:
            return self._popen.wait(FULL_PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.target} does not end; {self._state()}") from None

    def end(self, *, check: bool) -> None:
        with contextlib.suppress(OSError):
            self._writes.close()
        try:
            if check:
                status = self.wait()
                assert status in self._expected, f"{self.target}: status {status}\n{self.stderr()}"
        finally:
            if self._popen.poll() is None:
                self._popen.kill()
                self._popen.wait()
            self._reads.close()
            self._stderr.close()


@contextlib.contextmanager
def process(
    target: str, loop: str = "asyncio", env: dict[str, str] | None = None, **arguments: object
) -> Iterator[Process]:
    """Run ``module:function`` with ``arguments`` in a process of its own. It must end well by itself when
    the block is left, unless the test killed it."""
    started = Process(target, loop, env or {}, arguments)
    try:
        yield started
    except BaseException:
        started.end(check=False)
        raise
    started.end(check=True)
