"""A process of the soak, as the one that started it sees it."""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

import anyio

from tests.processes import Forked, Forker


class Child:
    """A running role of ``tests.soak.roles``.

    :param name: for people.
    :param loop: a key of ``tests.loops.LOOPS``.
    """

    def __init__(self, forker: Forker, name: str, role: str, loop: str, **arguments: object) -> None:
        self.name = name
        self._stderr = tempfile.TemporaryFile()
        its_input, self._writes = os.pipe()
        self._reads, its_output = os.pipe()
        try:
            self._forked: Forked = forker.start(
                [f"tests.soak.roles:{role}", loop, json.dumps(arguments)],
                dict(os.environ),
                [its_input, its_output, self._stderr.fileno()],
            )
        finally:
            os.close(its_input)
            os.close(its_output)
        self.pid = self._forked.pid
        self._buffer = b""
        #: it was killed on purpose
        self.killed = False

    def say(self, value: object) -> None:
        os.write(self._writes, json.dumps(value).encode() + b"\n")

    async def hear(self) -> Any:
        """Its next report; None when it says nothing more."""
        while b"\n" not in self._buffer:
            await anyio.wait_readable(self._reads)
            data = os.read(self._reads, 1 << 16)
            if not data:
                return None
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def hush(self) -> None:
        """Say nothing more: it ends then. Idempotent."""
        if self._writes >= 0:
            os.close(self._writes)
            self._writes = -1

    def kill(self) -> None:
        self.killed = True
        self._forked.kill()

    def status(self) -> int | None:
        """Its exit status, or minus the number of the signal; None while it runs."""
        return self._forked.poll()

    async def ended(self, patience: float) -> int | None:
        """Its exit status; None if it has not ended in time."""
        with anyio.move_on_after(patience):
            while self.status() is None:  # noqa: ASYNC110  # another process learns of it
                await anyio.sleep(0.02)
        return self.status()

    def stderr(self) -> str:
        """All of it: a line that is cut would be taken for one that nobody expects."""
        return os.pread(self._stderr.fileno(), os.fstat(self._stderr.fileno()).st_size, 0).decode(
            errors="replace"
        )

    def close(self) -> None:
        """Forget it; it must have ended."""
        self.hush()
        os.close(self._reads)
        self._stderr.close()
