"""A long-lived process of the soak, with everything that is known of it."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import defaultdict
from collections.abc import Collection
from typing import Any

import anyio

from tests.soak import watcher
from tests.soak.child import Child
from tests.soak.verdict import Record

#: Warnings of the library when a peer was killed.
WARNINGS = re.compile(r"link to \S+:(\d+) lost: .*|a connection was closed before it could be used: .*")

#: Warnings when a device failed.
MOVING = re.compile(
    r"link to \S+ lost: .*|soft\d: PORT_ERR on port 0x1|no path to .* ibv_create_ah: .*"
    r"|RDMA device soft\d is not used for new connections: .*"
    r"|<DatagramEndpoint .*>: its queue pair on soft\d failed, it has another one on soft\d: .*"
)


def unexpected(said: str, own_ports: Collection[int], *, moving: bool = False) -> str:
    """Without the warnings about links to processes that were killed: those to ``own_ports`` were not.

    :param moving: devices fail, too.
    """
    lines = []
    for line in said.splitlines():
        if moving and MOVING.fullmatch(line):
            continue
        warning = WARNINGS.fullmatch(line)
        if warning is None or int(warning[1] or 0) in own_ports:
            lines.append(line)
    return "\n".join(lines)


class Member:
    """Listens to a process, and samples it.

    :param steady: the kinds of work that it must do all the time.
    :param own_ports: of its server, which is not killed.
    :param moving: its devices fail.
    """

    def __init__(
        self,
        child: Child,
        loop: str,
        began: float,
        steady: tuple[str, ...] = (),
        own_ports: Collection[int] = (),
        *,
        moving: bool = False,
    ) -> None:
        self.child = child
        self.loop = loop
        self.first: Any = None
        #: it has said something; it knows that its peers will end
        self.ready, self.warned = anyio.Event(), anyio.Event()
        self.done: dict[str, int] = {}
        self.moved = 0
        self._live = 0
        self._inside: dict[str, float] = {}
        #: when the time of the curves begins
        self.began = began
        self._steady = steady
        self._own_ports = own_ports
        self._moving = moving
        self._ending = False
        self._curves: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._work: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.record = Record(child.name)

    async def listen(self, has_ports: bool) -> None:
        """Until it says nothing more. A server's first words are its ports."""
        while (report := await self.child.hear()) is not None:
            if has_ports and self.first is None:
                self.first = report
                self.ready.set()
                continue
            self.ready.set()
            self.done, self.moved, self._live = report["done"], report["moved"], report["live"]
            self._inside = report["inside"]
            self.record.faults += report["faults"]
            if report["ending"]:
                self.warned.set()
        self.ready.set()
        if not self._ending:
            status = await self.child.ended(5)
            self.record.death = f"died by itself, status {status}"

    def sample(self) -> None:
        """One point of each curve."""
        now = time.monotonic() - self.began
        try:
            values = watcher.sample(self.child.pid)
        except OSError:
            return  # listen() tells
        # The TCP connection of each live stream, datagram connection or connection for calls.
        values["all fds"] = values["fds"]
        values["fds"] -= self._live
        values |= self._inside
        for name, value in values.items():
            self._curves[name].append((now, value))
        for kind, count in self.done.items():
            self._work[kind].append((now, count))
        self._work["bytes"].append((now, self.moved))

    async def warn(self, patience: float) -> None:
        """Tell it that its peers will end, in the middle of whatever they do."""
        if self.child.status() is None:
            self.child.say("ending")
            with anyio.move_on_after(patience):
                await self.warned.wait()

    async def end(self, patience: float) -> None:
        """Have it end by itself. Whatever it does, it has ended afterwards."""
        self._ending = True
        self.child.hush()
        status = await self.child.ended(patience)
        if status is None:
            # Its stacks, on standard error.
            os.kill(self.child.pid, signal.SIGUSR1)
            await anyio.sleep(1)
            self.record.faults.append(f"hang: did not end within {patience:g} s when it was told to")
            self.child.kill()
            await self.child.ended(patience)
        elif status and not self.record.death:
            self.record.death = f"ended badly, status {status}"

    def finish(self) -> Record:
        """What the verdict is about."""
        self.record.curves = self._curves
        self.record.progress = {kind: self._work[kind] for kind in self._steady}
        self.record.said = unexpected(self.child.stderr(), self._own_ports, moving=self._moving)
        return self.record

    @property
    def work(self) -> dict[str, list[tuple[float, float]]]:
        """Counters of all kinds of work over time."""
        return self._work

    @property
    def latest(self) -> dict[str, float]:
        return {name: curve[-1][1] for name, curve in self._curves.items()}
