"""What a process of a test runs: a role, named as ``module:function``, on an event loop.

Its standard input and output carry one JSON value a line between the test and the role; a role ends when it
returns, and should when :meth:`Control.hear` raises EOFError: the test is over.

``python -m tests.program TARGET LOOP ARGUMENTS`` is such a process. ``python -m tests.program --fork FD``
forks them, as ordered over a Unix socket: to import aiordma and three event loops takes longer than most
roles do.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import random
import selectors
import signal
import socket
import sys
from typing import Any

import anyio

from tests import patient
from tests.loops import LOOPS

_PR_SET_PDEATHSIG = 1
#: What is told of a connection on a link, if it has it.
_STATE = ("is_closed", "peer_gone", "is_finished", "last_message_delivered", "error", "readable")


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
    print(engines_now(), file=sys.stderr, flush=True)


def engines_now() -> str:
    """The engines of this process, and all their connections."""
    from aiordma.links import engine as engines

    lines = []
    for engine in list(engines.ENGINES.values()):
        lines.append(json.dumps(engine.statistics(), default=str))
        for group in engine.all_groups:
            for member in group.members:
                state = {name: getattr(member.pipe, name, None) for name in _STATE}
                lines.append(f"{group.key[1]} {state} {member.pipe.statistics()}")
    return "\n".join(lines)


def die_with_parent() -> None:
    """Whatever becomes of the test, this process does not outlive it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def forked(orders: socket.socket) -> list[str]:
    """Fork a process for each order, and report how each ended.

    Returns in the forked processes only, with what they shall run, so that they end as any program does.
    """
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in (
        "aiordma.links.engine",
        "trio",
        "uvloop",
        "anyio._backends._asyncio",
        "anyio._backends._trio",
    ):
        importlib.import_module(module)
    gc.freeze()  # and is never looked through again
    running: dict[int, int] = {}  # pidfd: pid
    with selectors.PollSelector() as selector:
        selector.register(orders, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not orders:
                    pidfd = key.fd
                    selector.unregister(pidfd)
                    os.close(pidfd)
                    pid, status = os.waitpid(running.pop(pidfd), 0)
                    orders.send(
                        json.dumps({"pid": pid, "status": os.waitstatus_to_exitcode(status)}).encode()
                    )
                    continue
                try:
                    order, descriptors, _, _ = socket.recv_fds(orders, 1 << 16, 3)
                except ConnectionResetError:
                    sys.exit()  # who ordered has ended, and did not read every report
                if not order:
                    sys.exit()
                pid = os.fork()
                if not pid:
                    orders.close()
                    for pidfd in running:
                        os.close(pidfd)
                    for target, descriptor in enumerate(descriptors):
                        os.dup2(descriptor, target)
                        os.close(descriptor)
                    signal.signal(signal.SIGINT, signal.default_int_handler)
                    random.seed()
                    ordered = json.loads(order)
                    os.environ.clear()
                    os.environ.update(ordered["environment"])
                    arguments: list[str] = ordered["arguments"]
                    return arguments
                for descriptor in descriptors:
                    os.close(descriptor)
                pidfd = os.pidfd_open(pid)
                running[pidfd] = pid
                selector.register(pidfd, selectors.EVENT_READ)
                orders.send(json.dumps({"pid": pid}).encode())


def main(target: str, loop: str, arguments: str) -> None:
    die_with_parent()
    signal.signal(signal.SIGUSR1, dump)
    patient.set_defaults()
    control = Control(os.dup(0), os.dup(1))
    os.dup2(2, 1)
    module, name = target.split(":")
    role = getattr(importlib.import_module(module), name)
    backend, options = LOOPS[loop]

    async def run() -> None:
        await role(control, **json.loads(arguments))

    anyio.run(run, backend=backend, backend_options=options)


if __name__ == "__main__":
    if sys.argv[1] == "--fork":
        main(*forked(socket.socket(fileno=int(sys.argv[2]))))
    else:
        main(*sys.argv[1:])
