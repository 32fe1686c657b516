"""Transports poll between turns of the loop: without events, beside everything else, and not for ever."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma.config import Config
from aiordma.links import engine
from tests.health import until
from tests.private import needs
from tests.world import DEVICE

from .recorder import Recorder

if TYPE_CHECKING:
    from aiordma._cq import CompletionPoller

pytestmark = pytest.mark.anyio
SECOND = 1_000_000


class Echo(Recorder):
    """Answers with the same."""

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Ping(Recorder):
    """Sends `left` messages, each after the answer to the one before."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left
        self.done = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.left -= 1
        if self.left > 0:
            self.transport.write(data)
        elif not self.done.done():
            self.done.set_result(None)


def settings(busy_poll_us: int | None) -> Config:
    return Config(device=DEVICE, mode="rdma", busy_poll_us=busy_poll_us)


def poller() -> CompletionPoller:
    running = engine.running()
    assert running is not None
    return running.poller


async def connected(config: Config, factory: Any) -> tuple[Any, Any, Any]:
    server: Any = await aiordma.create_server(Echo, "127.0.0.1", 0, config=config)
    host, port = server.sockets[0].getsockname()
    transport, protocol = await aiordma.create_connection(factory, host, port, config=config)
    assert transport.get_extra_info("aiordma.path") == "rdma"
    return server, transport, protocol


async def close(server: Any, transport: Any, protocol: Any) -> None:
    transport.close()
    await protocol.lost
    server.close()
    await server.wait_closed()


async def test_a_conversation_needs_no_events() -> None:
    server, transport, protocol = await connected(settings(SECOND), lambda: Ping(500))
    with anyio.fail_after(30):
        transport.write(b"first")
        await asyncio.sleep(0)
        before = poller().events
        await protocol.done
        assert poller().events - before <= 2, "of what was armed before"
        assert poller().between.hits > 0
        await close(server, transport, protocol)


async def test_events_only_means_what_it_says() -> None:
    server, transport, protocol = await connected(settings(0), lambda: Ping(100))
    with anyio.fail_after(30):
        transport.write(b"first")
        await protocol.done
        assert poller().between.waits == 0
        assert poller().events > 50
        await close(server, transport, protocol)


async def test_other_descriptors_timers_and_tasks_get_their_turns_meanwhile() -> None:
    """The longest polling that can be set, for an answer that does not come."""
    server, transport, protocol = await connected(settings(SECOND), lambda: Ping(1))
    loop = asyncio.get_running_loop()
    here, there = socket.socketpair()
    here.setblocking(False)
    there.setblocking(False)
    seen = [0, 0]

    async def count(which: int) -> None:
        for _ in range(100):
            await asyncio.sleep(0.0001 if which else 0)
            seen[which] += 1

    with here, there, anyio.fail_after(30):
        transport.write(b"first")
        await protocol.done
        assert poller().between.expecting_since or poller().between.active
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(count(0))
            tasks.create_task(count(1))
            for turn in range(100):
                await loop.sock_sendall(there, b"%3d" % turn)
                assert await loop.sock_recv(here, 3) == b"%3d" % turn
        await close(server, transport, protocol)
    assert seen == [100, 100]


async def test_the_loop_sleeps_when_nothing_comes() -> None:
    server, transport, protocol = await connected(settings(50), lambda: Ping(1))
    with anyio.fail_after(30):
        transport.write(b"first")
        await protocol.done
        await until(lambda: poller().is_armed and not poller().between.active)
        polls = poller().polls
        for _ in range(10):
            await asyncio.sleep(0)
        assert poller().polls == polls  # it is no turn of the loop that leads to a look
        await close(server, transport, protocol)


@needs("_wait_for_data")
async def test_streams_poll_by_themselves() -> None:
    """Their tasks do it before they park, and the loop does not do it again."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    config = settings(50)
    async with await aiordma.start_server(echo, "127.0.0.1", 0, config=config) as server:
        listening: Any = server
        host, port = listening.sockets[0].getsockname()
        reader, writer = await aiordma.open_connection(host, port, config=config)
        with anyio.fail_after(30):
            for _ in range(50):
                writer.write(b"x")
                assert await reader.readexactly(1) == b"x"
            assert poller().between.waits == 0
            writer.close()
            await writer.wait_closed()


def test_a_loop_that_is_closed_while_it_polls() -> None:
    async def main() -> None:
        _server, transport, protocol = await connected(settings(SECOND), lambda: Ping(1))
        transport.write(b"first")
        await protocol.done
        transport.abort()
        _server.close()

    asyncio.run(main())
    asyncio.run(main(), debug=True)
