"""Channels between processes: integrity, kill -9 of either end amid large messages, and no leaks."""

from __future__ import annotations

import contextlib
import gc
import random

import anyio
import pytest

from aiordma.channels import channel
from aiordma.channels.channel import ConnectedChannel
from aiordma.errors import CompletionError, LinkError
from aiordma.links import engine
from aiordma.links.failover.leave import switch_engine
from tests.health import descriptors, nothing_left, until
from tests.pipes.channel_ends import End
from tests.processes import process
from tests.roles import LOCAL

from .roles import Echo, echo

pytestmark = pytest.mark.anyio

SERVER = "tests.channels.roles:echo_server"
CLIENT = "tests.channels.roles:pumping_client"


async def check_echo(connected: ConnectedChannel, seed: int, count: int = 60) -> None:
    rng = random.Random(seed)
    sent = [rng.randbytes(rng.choice([0, 64, 4096, 4700, 30_000, 1_000_000])) for _ in range(count)]
    end = End(connected.channel, keeps_views=False)

    async def feed() -> None:
        for message in sent:
            await end.send(message[:7], message[7:])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(feed)
        assert await end.received(count) == sent


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
async def test_everything_comes_back_as_it_was(mode: str) -> None:
    with process(SERVER) as server:
        port = await server.heard()
        async with nothing_left(), await channel.connect(LOCAL, port, mode=mode) as connected:  # type: ignore[arg-type]
            assert connected.path == mode
            await check_echo(connected, 1)


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
async def test_killed_server(mode: str) -> None:
    async with nothing_left():
        with process(SERVER) as server:
            port = await server.heard()
            connected = await channel.connect(LOCAL, port, mode=mode)  # type: ignore[arg-type]
            end = End(connected.channel, keeps_views=False)
            async with anyio.create_task_group() as tasks:

                async def pump() -> None:
                    with contextlib.suppress(anyio.BrokenResourceError):
                        while True:
                            await end.send(b"", bytes(700_000))
                            await anyio.lowlevel.checkpoint()

                tasks.start_soon(pump)
                await end.received(10)
                server.kill()
                assert isinstance(await end.ended(), LinkError | CompletionError)
                tasks.cancel_scope.cancel()
            with pytest.raises(anyio.BrokenResourceError):
                connected.channel.try_send(b"")
            await connected.aclose()


async def test_killed_clients() -> None:
    """Kill one client after another; the server's other channel is not affected."""
    async with nothing_left(), await channel.listen(LOCAL) as listener:
        echoes: list[Echo] = []

        async def serve(connected: ConnectedChannel) -> None:
            async with connected:
                echoes.append(Echo(connected.channel))
                await echoes[-1].ended.wait()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            for number in range(3):
                with process(CLIENT, port=listener.port) as client:
                    assert await client.heard() == "rdma"
                    for _ in range(5 + number):
                        await client.heard()
                    client.kill()
                await until(lambda: bool(echoes) and echoes[-1].ended.is_set())
                assert echoes.pop().error is not None
            async with await channel.connect(LOCAL, listener.port, mode="rdma") as connected:
                await check_echo(connected, 2, 20)
            tasks.cancel_scope.cancel()


async def test_channels_stay_when_streams_are_switched_to_tcp() -> None:
    async with nothing_left() as here, await channel.listen(LOCAL) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            async with await channel.connect(LOCAL, listener.port, mode="rdma") as connected:
                assert switch_engine(here) == 0
                await check_echo(connected, 5, 10)
            tasks.cancel_scope.cancel()


async def test_bytes_on_the_tcp_connection_break_the_channel() -> None:
    async with nothing_left() as here, await channel.listen(LOCAL) as listener:
        async with (
            await channel.connect(LOCAL, listener.port, mode="rdma") as a,
            await listener.accept() as b,
        ):
            ends = [End(a.channel), End(b.channel)]
            (member,) = next(group.members for group in here.all_groups if group.key[1] == "client")
            assert member.carrier is not None
            member.carrier.send(b"hello")
            errors = [await end.ended() for end in ends]
            assert "5 unexpected bytes on the TCP connection" in str(errors[1])


@pytest.mark.slow
async def test_connections_leave_nothing_behind() -> None:
    async with nothing_left() as here, await channel.listen(LOCAL) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)

            async def once(number: int) -> None:
                async with await channel.connect(LOCAL, listener.port, mode="rdma") as connected:
                    end = End(connected.channel)
                    await end.send(b"x", bytes(number * 1000))
                    await end.received(1)
                    if number % 3 == 0:
                        connected.channel.abort()
                    end.messages.clear()

            async def counted() -> tuple[int, int, int]:
                await until(lambda: not any(group.members for group in here.all_groups))
                gc.collect()
                return len(descriptors()), here.pool.used_bytes, len(here.all_groups) + len(here.cache.parked)

            for number in range(20):
                await once(number)
            before = await counted()
            for number in range(100):
                await once(number)
            assert await counted() == before
            tasks.cancel_scope.cancel()
    assert (await engine.current()) is here
