"""What a process of a test runs: a role, named as ``module:function``, on an event loop.

Its standard input and output carry one JSON value a line between the test and the role; a role ends when it
returns, and should when :meth:`Control.hear` raises EOFError: the test is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import importlib
import json
import os
import signal
import sys
from typing import Any

import anyio

from tests.loops import LOOPS

_PR_SET_PDEATHSIG = 1


class Control:
    """The role's line to its test."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = reads, writes
        self._buffer = b""
        os.set_blocking(reads, False)

    def say(self, value: object) -> None:
        os.write(self._writes, json.dumps(value).encode() + b"\n")

    async def hear(self) -> Any:
        """The test's next value. :raises EOFError: there are no more."""
        while b"\n" not in self._buffer:
            await anyio.wait_readable(self._reads)
            data = os.read(self._reads, 65536)
            if not data:
                raise EOFError
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    async def heard_all(self) -> None:
        """Wait until the test says nothing more."""
        try:
            while True:
                await self.hear()
        except EOFError:
            pass


def dump(*_: object) -> None:
    """What everybody waits for, on standard error: asked for with SIGUSR1 when a role is silent."""
    faulthandler.dump_traceback()
    with contextlib.suppress(RuntimeError):
        for task in asyncio.all_tasks():
            task.print_stack()
    from aiordma.links import engine as engines

    for engine in list(engines._engines.values()):
        print(json.dumps(engine.statistics(), default=str), file=sys.stderr)
        for group in engine.all_groups:
            for member in group.members:
                pipe = member.pipe
                state = (pipe.is_closed, pipe.peer_gone, pipe.error, pipe.readable, pipe.writable)
                print(group.key[1], state, pipe.statistics(), file=sys.stderr)
    sys.stderr.flush()


def main(target: str, loop: str, arguments: str) -> None:
    # Whatever becomes of the test, this process does not outlive it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGUSR1, dump)
    control = Control(os.dup(0), os.dup(1))
    os.dup2(2, 1)
    module, name = target.split(":")
    role = getattr(importlib.import_module(module), name)
    backend, options = LOOPS[loop]

    async def run() -> None:
        await role(control, **json.loads(arguments))

    anyio.run(run, backend=backend, backend_options=options)


if __name__ == "__main__":
    main(*sys.argv[1:])
