"""No wake-up of a transport is lost: answers at random moments, before, while and after the loop polls."""

from __future__ import annotations

import asyncio
import json
import time
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest

import aiordma
from aiordma.config import Config
from tests.health import ROUNDS, nothing_left
from tests.processes import PATIENCE, process
from tests.roles import LOCAL, statistics

if TYPE_CHECKING:
    from tests.program import Control

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.parametrize("anyio_backend", ["asyncio", "asyncio+uvloop"], indirect=True),
]

HERE = "tests.system.integration.test_transport_wakeups"
MESSAGES = 3000 * ROUNDS
CONNECTIONS = 5


class Answering(asyncio.Protocol):
    """Answers each message after a while: at once, after a turn, after some work, or by a timer. The longest
    are as long as adaptive polling."""

    def __init__(self) -> None:
        self.random = Random()
        self.loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        way = self.random.randrange(16)
        if way < 6:
            self.answer(data)
        elif way < 9:
            self.loop.call_soon(self.answer, data)
        elif way < 14:
            until = time.perf_counter() + self.random.random() * 0.0003
            while time.perf_counter() < until:
                pass
            self.answer(data)
        else:
            self.loop.call_later(self.random.random() * 0.0005, self.answer, data)

    def answer(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)


class Asking(Answering):
    """Sends a number, waits for it to come back, and goes on with the next one after a while."""

    def __init__(self, number: int, left: int) -> None:
        super().__init__()
        self.number = number
        self.left = left
        self.done: asyncio.Future[None] = self.loop.create_future()
        self.expected = b""
        self.got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.answer(b"")

    def answer(self, data: bytes) -> None:
        self.expected = (self.number << 32 | self.left).to_bytes(8, "big")
        self.transport.write(self.expected)

    def data_received(self, data: bytes) -> None:
        self.got += data
        if len(self.got) < 8:
            return
        if self.got != self.expected:
            self.done.set_exception(AssertionError(f"{self.got!r} instead of {self.expected!r}"))
            return
        self.got = b""
        self.left -= 1
        if self.left:
            super().data_received(data)
        else:
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionResetError("closed"))


def _the(protocol: Asking) -> Asking:
    return protocol


async def answering_server(control: Control, **settings: Any) -> None:
    """Answers 8 bytes with 8 bytes, after pauses."""
    server: Any = await aiordma.create_server(Answering, LOCAL, 0, config=Config(**settings))
    async with server:
        control.say(server.sockets[0].getsockname()[1])
        try:
            while True:
                await control.hear()
                control.say(await statistics())
        except EOFError:
            pass


@pytest.mark.parametrize("busy_poll_us", [0, 30, None], ids=["events only", "30 us", "adaptive"])
@pytest.mark.parametrize("connections", [1, CONNECTIONS])
async def test_ping_pong_of_transports_with_random_pauses(busy_poll_us: int | None, connections: int) -> None:
    config = Config(busy_poll_us=busy_poll_us)
    with process(f"{HERE}:answering_server", busy_poll_us=busy_poll_us) as server:
        port = await server.heard()
        await aiordma.links.engine.current(config)
        async with nothing_left():
            made = [Asking(number, MESSAGES // connections) for number in range(connections)]
            for one in made:
                factory = partial(_the, one)
                await aiordma.create_connection(factory, LOCAL, port, config=config, mode="rdma")
            try:
                with anyio.fail_after(PATIENCE * ROUNDS):
                    await asyncio.gather(*(one.done for one in made))
            except TimeoutError:
                mine = await statistics()
                server.say("statistics?")
                theirs = await server.heard()
                left = [one.left for one in made]
                pytest.fail(
                    f"hangs, left {left}\n{json.dumps(mine, indent=1)}\n{json.dumps(theirs, indent=1)}"
                )
            for one in made:
                one.transport.close()
