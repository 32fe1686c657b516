"""Starts the processes of a soak, kills some of them, and ends them all."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import anyio

from tests.loops import LOOPS
from tests.processes import Forker
from tests.soak.child import Child
from tests.soak.ledger import rest
from tests.soak.member import Member
from tests.soak.roles import MOVING, ON_ASYNCIO, STEADY
from tests.soak.verdict import Record

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

#: Seconds between two victims of one kind, on average; how long each lives at most.
CLIENTS_DIE, CLIENT_LIVES = 4.0, 2.0
SERVERS_DIE, SERVER_LIVES = 6.0, 3.0
#: Seconds in which all processes must have begun, or ended.
STARTING = 60.0


@dataclass
class Options:
    """What the command line says."""

    seconds: float
    seed: int
    patience: float
    #: seconds between two samples, and between two lines about the progress
    interval: float
    lines: float
    pace: float

    @property
    def silence(self) -> float:
        """Seconds without a piece of some kind of work that are a hang. Slow work pauses for longer: a
        connection that lives for seconds at full pace lives for minutes at a tenth of it."""
        return self.patience / min(self.pace, 1)


class Soak:
    """One soak: :meth:`run` it, then look at what it has found."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.began = time.monotonic()
        #: seconds from the moment when all processes had begun to the end
        self.lasted = 0.0
        self.members: list[Member] = []
        self.killed: Counter[str] = Counter()
        self._forker = Forker()
        self._random = Random(options.seed)
        self._victims: set[Child] = set()
        #: what victims reported before they were killed
        self._record = Record("victims")

    # ---- all of it

    async def run(self) -> None:
        """Until the time is over, or Ctrl-C."""
        try:
            async with anyio.create_task_group() as tasks:
                with anyio.fail_after(STARTING):
                    for loop in LOOPS:
                        await self._start_pair(tasks, loop)
                    await self._start_pair(tasks, self._random.choice(list(LOOPS)), moving=True)
                print(f"{len(self.members)} processes have begun", flush=True)
                self.began = time.monotonic()
                for member in self.members:
                    member.began = self.began
                async with anyio.create_task_group() as work:
                    for job in (self._sample, self._tell, self._kill_clients, self._kill_servers):
                        work.start_soon(job)
                    await self._time_is_over()
                    work.cancel_scope.cancel()
                self.lasted = time.monotonic() - self.began
                await self._end()
        finally:
            self._end_at_once()

    async def _time_is_over(self) -> None:
        with (
            anyio.move_on_after(self.options.seconds),
            anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals,
        ):
            async for number in signals:
                print(f"{signal.Signals(number).name}: ending", file=sys.stderr)
                return

    async def _start_pair(self, tasks: TaskGroup, loop: str, *, moving: bool = False) -> None:
        """:param moving: one with two devices, of which one fails after the other."""
        options = self.options
        kind = "moving " if moving else ""
        its_server = Child(
            self._forker,
            f"{loop} {kind}server",
            "server",
            loop,
            patience=options.patience,
            two_devices=moving,
        )
        server = Member(its_server, loop, self.began)
        self.members.append(server)
        tasks.start_soon(server.listen, True)
        await server.ready.wait()
        if server.first is None:
            raise RuntimeError(f"the {loop} server did not start:\n{server.child.stderr()}")
        ports = server.first["ports"]
        arguments: dict[str, Any] = {"ports": ports, "pace": options.pace, "patience": options.patience}
        if not moving:
            arguments["authority"] = server.first["authority"]
        role = "mover" if moving else "client"
        seed = f"{options.seed} {kind}{loop}"
        child = Child(self._forker, f"{loop} {kind}client", role, loop, seed=seed, **arguments)
        steady = MOVING if moving else STEADY if loop == "trio" else (*STEADY, *ON_ASYNCIO)
        client = Member(child, loop, self.began, steady, ports.values(), moving=moving)
        self.members.append(client)
        tasks.start_soon(client.listen, False)
        await client.ready.wait()

    async def _end(self) -> None:
        """Clients first, when their servers are warned: they end in the middle of their work."""
        for victim in list(self._victims):
            await self._kill(victim)
        async with anyio.create_task_group() as tasks:
            for member in self.members:
                if member.first is not None:
                    tasks.start_soon(member.warn, self.options.patience)
        for role in ("client", "server"):
            async with anyio.create_task_group() as tasks:
                for member in self.members:
                    if member.child.name.endswith(role):
                        tasks.start_soon(member.end, self.options.patience)

    def _end_at_once(self) -> None:
        """Whatever happened: nobody is left."""
        for child in [*self._victims, *(member.child for member in self.members)]:
            if child.status() is None:
                child.kill()

    def records(self) -> list[Record]:
        return [*(member.finish() for member in self.members), self._record]

    # ---- beside the work

    async def _sample(self) -> None:
        while True:
            for member in self.members:
                member.sample()
            await anyio.sleep(self.options.interval)

    async def _tell(self) -> None:
        while True:
            await anyio.sleep(self.options.lines)
            print(self.line(), flush=True)

    def line(self) -> str:
        """The state in one line."""
        clients = [member for member in self.members if member.done]
        pieces = sum(member.done.get(kind, 0) for member in clients for kind in STEADY)
        memory = "/".join(f"{member.latest.get('pss', 0) / 2**20:.0f}" for member in self.members)
        files = "/".join(f"{member.latest.get('all fds', 0):.0f}" for member in self.members)
        faults = sum(len(member.record.faults) for member in self.members) + len(self._record.faults)
        return (
            f"{time.monotonic() - self.began:6.0f} s: {pieces} pieces of work, "
            f"{sum(member.moved for member in clients) / 2**20:.0f} MiB, "
            f"{self.killed['clients']} clients and {self.killed['servers']} servers killed, "
            f"PSS {memory} MiB, {files} fds, {faults} faults"
        )

    # ---- those who die

    async def _kill_clients(self) -> None:
        while True:
            await rest(self._random, CLIENTS_DIE / self.options.pace)
            server = self._random.choice([member for member in self.members if member.first is not None])
            victim = self._victim("victim", pace=self.options.pace, **server.first)
            await anyio.sleep(self._random.uniform(0, CLIENT_LIVES))
            await self._kill(victim)
            self.killed["clients"] += 1

    async def _kill_servers(self) -> None:
        """Long-lived clients visit a server; then it is killed."""
        while True:
            await rest(self._random, SERVERS_DIE / self.options.pace)
            victim = self._victim("server")
            if (said := await victim.hear()) is not None:
                self._send_visitors(said["ports"])
                await anyio.sleep(self._random.uniform(0, SERVER_LIVES))
            await self._kill(victim)
            self.killed["servers"] += 1

    def _send_visitors(self, ports: Any) -> None:
        """One or more clients."""
        for member in self._random.sample(self.members, len(self.members)):
            if member.first is None and member.child.status() is None:
                member.child.say({"ports": ports, "seed": f"{self._random.random()}"})
                if self._random.random() < 0.5:
                    break

    def _victim(self, role: str, **arguments: Any) -> Child:
        loop = self._random.choice(list(LOOPS))
        if role == "victim":
            arguments["seed"] = f"{self._random.random()}"
        name = f"{loop} {role} that was to be killed"
        child = Child(self._forker, name, role, loop, patience=self.options.patience, **arguments)
        self._victims.add(child)
        return child

    async def _kill(self, victim: Child) -> None:
        """Kill it, which must be what ends it, and note what it has reported."""
        status = victim.status()
        if status is not None and not victim.killed:
            self._record.faults.append(f"{victim.name}: died by itself, status {status}:\n{victim.stderr()}")
        else:
            victim.kill()
            await victim.ended(self.options.patience)
        while (report := await victim.hear()) is not None:
            self._record.faults += [f"{victim.name}: {fault}" for fault in report.get("faults", ())]
        self._victims.discard(victim)
        victim.close()
