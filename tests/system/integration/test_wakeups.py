"""No wake-up is ever lost: messages at random moments, on both sides of every arming, and never a hang.

There is no timer behind the waiting, so a lost wake-up is a stream that waits for ever, and this test's time
runs out.
"""

from __future__ import annotations

import json
import time
from random import Random
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

import aiordma
from aiordma.config import Config
from tests.health import ROUNDS, nothing_left
from tests.processes import PATIENCE, process
from tests.roles import LOCAL, statistics

if TYPE_CHECKING:
    from tests.program import Control

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

HERE = "tests.system.integration.test_wakeups"
MESSAGES = 1200 * ROUNDS
STREAMS = 5


async def pause(random: Random) -> None:
    """For about as long as arming, polling and waking take: nothing, a turn of the loop, some work, a nap."""
    way = random.randrange(16)
    if way < 8:
        return
    if way < 12:
        await anyio.lowlevel.checkpoint()
    elif way < 15:
        until = time.perf_counter() + random.random() * 0.0002
        while time.perf_counter() < until:
            pass
    else:
        await anyio.sleep(random.random() * 0.0005)


async def receive_exactly(stream: aiordma.RdmaStream, n: int) -> bytes:
    got = b""
    while len(got) < n:
        got += await stream.receive(n - len(got))
    return got


async def pausing_server(control: Control, **settings: Any) -> None:
    """Answers 8 bytes with 8 bytes, after pauses."""
    config = Config(**settings)

    async def serve(stream: aiordma.RdmaStream) -> None:
        random = Random()
        async with stream:
            try:
                while True:
                    message = await receive_exactly(stream, 8)
                    await pause(random)
                    await stream.send(message)
                    await pause(random)
            except anyio.EndOfStream:
                pass

    async with await aiordma.listen(LOCAL, 0, config=config) as listener:
        control.say(listener.port)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            try:
                while True:
                    await control.hear()
                    control.say(await statistics())
            except EOFError:
                tasks.cancel_scope.cancel()


@pytest.mark.parametrize("busy_poll_us", [0, None], ids=["events only", "adaptive"])
@pytest.mark.parametrize("streams", [1, STREAMS])
async def test_ping_pong_with_random_pauses(busy_poll_us: int | None, streams: int) -> None:
    config = Config(busy_poll_us=busy_poll_us)
    answered = [0] * streams

    async def client(number: int, port: int) -> None:
        random = Random()
        async with await aiordma.connect(LOCAL, port, config=config, mode="rdma") as stream:
            for turn in range(MESSAGES // streams):
                message = (number << 32 | turn).to_bytes(8, "big")
                await stream.send(message)
                await pause(random)
                assert await receive_exactly(stream, 8) == message
                answered[number] += 1
                await pause(random)

    with process(f"{HERE}:pausing_server", busy_poll_us=busy_poll_us) as server:
        port = await server.heard()
        await aiordma.links.engine.current(config)
        async with nothing_left():
            try:
                with anyio.fail_after(PATIENCE * ROUNDS):
                    async with anyio.create_task_group() as tasks:
                        for number in range(streams):
                            tasks.start_soon(client, number, port)
            except TimeoutError:
                mine = await statistics()
                server.say("statistics?")
                theirs = await server.heard()
                pytest.fail(
                    f"hangs at {answered}\n{json.dumps(mine, indent=1)}\n{json.dumps(theirs, indent=1)}"
                )


@pytest.mark.parametrize("busy_poll_us", [0, None], ids=["events only", "adaptive"])
async def test_credit_wakes_senders(busy_poll_us: int | None) -> None:
    """The same for those who wait for room: the smallest rings, senders that are always ahead."""
    config = Config(busy_poll_us=busy_poll_us, ring_bytes=16384)
    total = 4_000_000 * ROUNDS
    received = [0] * 2

    async def client(number: int, port: int) -> None:
        async with await aiordma.connect(LOCAL, port, config=config, mode="rdma") as stream:

            async def send() -> None:
                random = Random()
                left = total
                while left:
                    size = min(left, random.randrange(1, 60_000))
                    await stream.send(bytes(size))
                    left -= size
                await stream.send_eof()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                random = Random()
                async for part in stream:
                    received[number] += len(part)
                    await pause(random)

    with process("tests.roles:echo_server", busy_poll_us=busy_poll_us, ring_bytes=16384) as server:
        port = await server.heard()
        await aiordma.links.engine.current(config)
        async with nothing_left():
            try:
                with anyio.fail_after(PATIENCE * ROUNDS):
                    async with anyio.create_task_group() as tasks:
                        for number in range(2):
                            tasks.start_soon(client, number, port)
            except TimeoutError:
                mine = await statistics()
                server.say("statistics?")
                theirs = await server.heard()
                pytest.fail(
                    f"hangs at {received}\n{json.dumps(mine, indent=1)}\n{json.dumps(theirs, indent=1)}"
                )
    assert received == [total, total]
