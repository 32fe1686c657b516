"""Clients that begin and do not go on, thousands of them: the limits hold, and others are served."""

from __future__ import annotations

import resource
import socket
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma.negotiation.announcement import arriving
from tests.health import check_echo, descriptors, nothing_left, until
from tests.world import DEVICE, SLOWER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LOCAL = "127.0.0.1"
EYE_CATCHER = bytes.fromhex("e2d4c3d9")
CLIENTS = 1000


@asynccontextmanager
async def serving(
    timeout_ms: int, first_wait_ms: int = 500, **limits: Any
) -> AsyncIterator[aiordma.RdmaListener]:
    """The README's server."""

    async def echo(stream: aiordma.RdmaStream) -> None:
        async for data in stream:
            await stream.send(data)

    config = aiordma.Config(
        device=DEVICE, negotiate_timeout_ms=int(timeout_ms * SLOWER), server_first_wait_ms=first_wait_ms
    )
    async with nothing_left(), await aiordma.listen(LOCAL, 0, config=config, **limits) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            yield listener
            await until(lambda: not listener.statistics().serving)
            tasks.cancel_scope.cancel()


async def crowd(stack: ExitStack, port: int, count: int, first_bytes: bytes) -> list[socket.socket]:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most[0] < 4 * count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4 * count, most[1]), most[1]))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, most)

    def connect() -> list[socket.socket]:
        clients = [stack.enter_context(socket.create_connection((LOCAL, port))) for _ in range(count)]
        for client in clients:
            client.sendall(first_bytes)
            client.setblocking(False)
        return clients

    return await anyio.to_thread.run_sync(connect)


async def others_are_served(listener: aiordma.RdmaListener) -> None:
    """Over RDMA, over TCP, and with a program that knows nothing of aiordma; twice, on the same link."""
    with anyio.fail_after(30):
        for mode in ("rdma", "tcp", "rdma"):
            async with await aiordma.connect(LOCAL, listener.port, mode=mode) as stream:
                assert stream.path == mode
                await check_echo(stream)
        async with await anyio.connect_tcp(LOCAL, listener.port) as plain:
            await plain.send(b"GET")
            assert await plain.receive() == b"GET"


async def test_a_thousand_that_send_one_byte() -> None:
    before = len(descriptors())
    async with serving(6000, first_wait_ms=600_000) as listener:
        with ExitStack() as stack:
            # Any of them may be of aiordma, as long as one of this host is on its way.
            with arriving([(socket.AF_INET, (LOCAL, listener.port))]):
                clients = await crowd(stack, listener.port, CLIENTS, EYE_CATCHER[:1])
                await until(lambda: listener.statistics().undecided == CLIENTS)
                await others_are_served(listener)
                assert listener.statistics().undecided == CLIENTS
            # Then they count as plain clients, and get what that gives.
            await until(lambda: listener.statistics().undecided == 0)
            await until(lambda: listener.statistics().serving == CLIENTS)
            for client in clients:
                await anyio.wait_readable(client)
                assert client.recv(10) == EYE_CATCHER[:1]
        await until(lambda: not listener.statistics().serving)
        await others_are_served(listener)
        await until(lambda: not listener.statistics().serving)
        assert listener.statistics().handlers_failed == 0
    assert len(descriptors()) < before + 20


async def test_the_limit_of_what_is_pending_holds() -> None:
    """Beyond it, clients wait in the kernel until those before them are decided."""
    async with serving(600_000, first_wait_ms=600_000, max_pending=50) as listener:
        with ExitStack() as stack:

            def pending() -> int:
                statistics = listener.statistics()
                assert statistics.undecided + statistics.negotiating + statistics.waiting <= 50
                return statistics.undecided + statistics.negotiating

            # Any of them may be of aiordma, as long as one of this host is on its way.
            with arriving([(socket.AF_INET, (LOCAL, listener.port))]):
                await crowd(stack, listener.port, 99, EYE_CATCHER)
                await until(lambda: pending() == 50)
            # Then they are plain clients, and make room: those beyond the limit first, then others.
            await until(lambda: listener.statistics().accepted >= 99 and pending() < 50)
            with anyio.fail_after(60):
                await others_are_served(listener)
            await until(lambda: listener.statistics().accepted >= 103 and not pending())


@pytest.mark.parametrize(
    "rest",
    [b"\x01\xff\xff\x10" + bytes(3000), b"\x01\x10\x01\x10", b"\x01\x00\x00\x10", b"\xff\x00\x34\x10"],
    ids=["long and much", "long", "no length", "no type"],
)
async def test_what_cannot_be_a_message_is_a_plain_clients(rest: bytes) -> None:
    """Whatever length it claims: the handler gets what was sent, and nothing is kept for more."""
    sent = EYE_CATCHER + rest
    async with serving(6000) as listener:
        with ExitStack() as stack:
            clients = await crowd(stack, listener.port, 100, sent)
            await others_are_served(listener)
            for client in clients:
                with anyio.fail_after(60):
                    got = b""
                    while len(got) < len(sent):
                        await anyio.wait_readable(client)
                        got += client.recv(len(sent))
                    assert got == sent
        assert listener.statistics().handlers_failed == 0


async def test_a_proposal_that_never_ends() -> None:
    async with serving(500) as listener:
        with ExitStack() as stack:
            clients = await crowd(stack, listener.port, 100, EYE_CATCHER + b"\x01\x00\x34\x10" + bytes(20))
            await others_are_served(listener)
            # Each is turned away in time, and none reaches a handler.
            await until(lambda: listener.statistics().failed == len(clients))
            for client in clients:
                with anyio.fail_after(30):
                    await anyio.wait_readable(client)
            assert listener.statistics().tcp == 2
