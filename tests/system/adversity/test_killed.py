"""kill -9 of either side while data flows: its peers get the end soon, and everybody else nothing.

The end is an error, or as on TCP one in order for those who receive: when nothing was left undone."""

from __future__ import annotations

import contextlib
import os
import signal
from random import Random
from typing import TYPE_CHECKING

import anyio
import pytest

import aiordma
from aiordma.links.link import Link
from tests.health import ROUNDS, check_echo, check_end, descriptors, nothing_left, until
from tests.processes import PATIENCE, process
from tests.roles import LOCAL, echo
from tests.world import DEVICE

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from aiordma.proto.llc import LlcMessage
    from tests.program import Control

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ECHO = "tests.roles:echo_server"
PUMP = "tests.roles:pumping_clients"


class Traffic:
    """Bytes both ways on one stream until it breaks, or ``stop`` is called; all of them checked."""

    def __init__(self, tasks: TaskGroup, stream: aiordma.RdmaStream, size: int) -> None:
        self.stream, self.size = stream, size
        self.received = 0
        self.broken: list[anyio.BrokenResourceError] = []
        self._ended = anyio.Event()
        self._stopping = False
        tasks.start_soon(self._run)

    async def _run(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._guarded_send)
                with contextlib.suppress(anyio.EndOfStream):
                    while True:
                        try:
                            part = await self.stream.receive()
                        except anyio.BrokenResourceError as error:
                            self.broken.append(error)
                            return
                        at = self.received % 251
                        assert part == (PATTERN[at:] + PATTERN * (len(part) // 251 + 1))[: len(part)]
                        self.received += len(part)
        finally:
            self._ended.set()

    async def _guarded_send(self) -> None:
        at = 0
        try:
            while not self._stopping:
                await self.stream.send((PATTERN[at:] + PATTERN * (self.size // 251 + 1))[: self.size])
                at = (at + self.size) % 251
            await self.stream.send_eof()
        except anyio.BrokenResourceError as error:
            self.broken.append(error)

    async def flowed(self, count: int) -> None:
        goal = self.received + count
        await until(lambda: self.received >= goal or bool(self.broken), lambda: self.stream.statistics())
        assert not self.broken, self.broken[0].__cause__

    async def breaks(self) -> None:
        with anyio.fail_after(PATIENCE):
            await self._ended.wait()
        assert self.broken
        assert all(error.__cause__ is not None for error in self.broken)
        with pytest.raises(anyio.BrokenResourceError):
            await self.stream.send(b"x")
        with pytest.raises(anyio.BrokenResourceError if len(self.broken) == 2 else anyio.EndOfStream):
            await self.stream.receive()
        await self.stream.aclose()

    async def stop(self) -> None:
        self._stopping = True
        with anyio.fail_after(PATIENCE):
            await self._ended.wait()
        assert not self.broken, self.broken[0].__cause__
        await self.stream.aclose()


PATTERN = bytes(range(251))


async def test_server() -> None:
    random = Random()
    async with nothing_left() as engine:
        with process(ECHO) as bystander:
            port = await bystander.heard()
            async with anyio.create_task_group() as tasks:
                other = Traffic(tasks, await aiordma.connect(LOCAL, port, mode="rdma"), 5_000)
                before: list[str] = []
                for _ in range(4 * ROUNDS):
                    with process(ECHO) as victim:
                        victims_port = await victim.heard()
                        killed = [
                            Traffic(tasks, await aiordma.connect(LOCAL, victims_port, mode="rdma"), size)
                            for size in (1, 400, 70_000)
                        ]
                        for traffic in killed:
                            await traffic.flowed(random.randrange(1, 10_000))
                        victim.kill()
                        for traffic in killed:
                            await traffic.breaks()
                    await other.flowed(100_000)
                    await until(lambda: len(engine.all_groups) == 1, engine.statistics)
                    before = before or descriptors()
                await until(lambda: len(descriptors()) <= len(before), lambda: (before, descriptors()))
                await other.stop()


async def test_client() -> None:
    random = Random()
    outcomes: list[BaseException | str | None] = []

    async def serve(stream: aiordma.RdmaStream) -> None:
        assert stream.path == "rdma"
        async with stream:
            try:
                async for part in stream:
                    await stream.send(part)
                outcomes.append("the end in order")
            except anyio.BrokenResourceError as error:
                outcomes.append(error.__cause__)

    async with nothing_left() as engine, await aiordma.listen(LOCAL) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            with process(PUMP, port=listener.port) as bystander:
                assert await bystander.heard() == "rdma"
                before: list[str] = []
                for _ in range(4 * ROUNDS):
                    with process(PUMP, port=listener.port, streams=3) as victim:
                        # Said when a stream opens, however much others have carried by then.
                        paths: list[str] = []
                        while len(paths) < 3:
                            paths += [said] if isinstance(said := await victim.heard(), str) else []
                        assert paths == ["rdma"] * 3
                        for _ in range(random.randrange(100)):
                            await victim.heard()
                        victim.kill()
                        await until(lambda: len(outcomes) == 3, lambda: (outcomes, engine.statistics()))
                        assert all(outcomes)
                        outcomes.clear()
                    goal = 300_000
                    while goal > 0:
                        goal -= await bystander.heard()
                    await until(lambda: len(engine.all_groups) == 1, engine.statistics)
                    before = before or descriptors()
                await until(lambda: len(descriptors()) <= len(before), lambda: (before, descriptors()))
                bystander.kill()
            await until(lambda: not engine.all_groups, engine.statistics)
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("step", range(6))
async def test_while_the_connection_is_made(step: int) -> None:
    """The client dies somewhere between its first TCP segment and its first byte."""
    async with nothing_left() as engine, await aiordma.listen(LOCAL) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            for turn in range(2 * ROUNDS):
                with process(
                    "tests.system.adversity.test_killed:connecting_client", port=listener.port
                ) as victim:
                    # It says something at every step; the more is heard, the later it dies.
                    for _ in range(step + turn % 2):
                        if await victim.heard() == "up":
                            break
                    victim.kill()
                await until(lambda: not engine.all_groups, engine.statistics)
            state = listener.statistics
            await until(lambda: not state().undecided + state().negotiating, state)
            async with await aiordma.connect(LOCAL, listener.port, mode="rdma") as stream:
                await check_echo(stream)
                await check_end(stream)
            tasks.cancel_scope.cancel()


async def connecting_client(control, port: int) -> None:  # type: ignore[no-untyped-def]
    from aiordma.links import contact

    class Spoken(contact.ClientContact):
        async def accepted(self, accept, peer=""):  # type: ignore[no-untyped-def]
            control.say("accepted")
            confirm = await super().accepted(accept, peer)
            control.say("confirming")
            return confirm

        async def established(self):  # type: ignore[no-untyped-def]
            control.say("confirmed")
            pipe = await super().established()
            control.say("established")
            return pipe

    from aiordma.links import engine as engines

    vars(engines)["ClientContact"] = Spoken
    control.say("connecting")
    stream = await aiordma.connect(LOCAL, port, mode="rdma")
    control.say("up")
    await stream.send(b"x")
    await control.heard_all()


@pytest.mark.skipif(
    DEVICE != "soft", reason="what a killed process has sent may be under way on other devices"
)
async def test_a_client_that_has_ended_before_the_server_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has connected, sent and been killed while the server's loop was blocked: the end of its TCP
    connection is found first, and its bytes count all the same."""
    received = b""
    ended = anyio.Event()

    async def serve(stream: aiordma.RdmaStream) -> None:
        nonlocal received
        with contextlib.suppress(anyio.BrokenResourceError):
            async for part in stream:
                received += part
        ended.set()

    send = Link._send_llc
    async with await aiordma.listen(LOCAL) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        with process("tests.system.adversity.test_killed:brief_client", port=listener.port) as victim:
            victim.expect(-signal.SIGKILL)

            def send_and_block(self: Link, message: LlcMessage) -> None:
                send(self, message)
                monkeypatch.undo()
                victim.wait()

            monkeypatch.setattr(Link, "_send_llc", send_and_block)
            with anyio.fail_after(PATIENCE):
                await ended.wait()
        assert received == b"x" * 1000
        tasks.cancel_scope.cancel()


async def brief_client(control: Control, port: int) -> None:
    stream = await aiordma.connect(LOCAL, port, mode="rdma")
    await stream.send(b"x" * 1000)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("anyio_backend", [("asyncio", {}), ("asyncio", {"use_uvloop": True})])
async def test_on_asyncios_surface(anyio_backend: object) -> None:
    """What asyncio's own streams give when a process has answered everything, and is killed."""
    with process(ECHO) as victim:
        reader, writer = await aiordma.open_connection(LOCAL, await victim.heard(), mode="rdma")
        writer.write(b"x" * 1000)
        assert await reader.readexactly(1000) == b"x" * 1000
        victim.kill()
        with anyio.fail_after(PATIENCE):
            if DEVICE == "soft":
                assert await reader.read(1) == b""
            else:  # no device of the kernel tells whether a process left something undone
                with pytest.raises(ConnectionResetError):
                    await reader.read(1)
            for _ in range(2):  # as on TCP, the first one that meets the end is no error
                writer.write(b"x")
            with pytest.raises(ConnectionError):
                await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
