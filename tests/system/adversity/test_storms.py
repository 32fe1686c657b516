"""Storms of cancellation: many tasks connect, talk and call at once, and each is cancelled at some moment."""

from __future__ import annotations

import contextlib
from random import Random

import anyio
import anyio.lowlevel
import pytest

import aiordma
from aiordma import rpc
from tests.health import ROUNDS, check_echo, check_end, nothing_left, until
from tests.roles import LOCAL, echo

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

TASKS = 60


async def test_streams() -> None:
    """Those that are cancelled leave nothing behind; one beside them has every byte in order."""
    random = Random(17)
    ended = cancelled = 0

    async with nothing_left(), await aiordma.listen(LOCAL) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)

        async def talk() -> None:
            nonlocal ended, cancelled
            turns, data = random.randrange(80), random.randbytes(random.choice((1, 3000, 300_000)))
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as pair:

                    async def cancel() -> None:
                        for _ in range(turns):
                            await anyio.lowlevel.checkpoint()
                        scope.cancel()

                    pair.start_soon(cancel)
                    async with await aiordma.connect(LOCAL, listener.port, mode="rdma") as stream:
                        await check_echo(stream, data)
                    ended += 1
                    pair.cancel_scope.cancel()
            cancelled += scope.cancelled_caught

        async with await aiordma.connect(LOCAL, listener.port, mode="rdma") as bystander:
            for _ in range(ROUNDS):
                async with anyio.create_task_group() as storm:
                    for _ in range(TASKS):
                        storm.start_soon(talk)
                    for _ in range(5):
                        await check_echo(bystander)
            await check_end(bystander)
        await until(lambda: not listener.statistics().negotiating, listener.statistics)
        async with await aiordma.connect(LOCAL, listener.port, mode="rdma") as stream:
            await check_echo(stream)
            await check_end(stream)
        tasks.cancel_scope.cancel()
    assert ended
    assert cancelled >= TASKS // 4


async def test_calls() -> None:
    """On one connection. Those that are not cancelled have their own answer, and nobody else's."""
    random = Random(18)
    service = rpc.Service("storm")

    @service.method
    async def same(data: bytes) -> bytes:
        for _ in range(data[0] % 7):
            await anyio.lowlevel.checkpoint()
        return data

    answered = 0
    async with rpc.serve(service, LOCAL) as server:
        async with rpc.connect(LOCAL, server.port, mode="rdma") as client:

            async def call() -> None:
                nonlocal answered
                turns, data = random.randrange(30), random.randbytes(random.choice((1, 900, 60_000)))
                async with anyio.create_task_group() as pair:

                    async def ask() -> None:
                        nonlocal answered
                        with contextlib.suppress(rpc.RpcCancelled):
                            assert await client.call("storm.same", data, timeout=60) == data
                            answered += 1

                    pair.start_soon(ask)
                    for _ in range(turns):
                        await anyio.lowlevel.checkpoint()
                    pair.cancel_scope.cancel()

            for _ in range(ROUNDS):
                async with anyio.create_task_group() as storm:
                    for _ in range(4 * TASKS):
                        storm.start_soon(call)
            for size in (1, 900, 60_000):
                assert await client.call("storm.same", b"\1" * size, timeout=60) == b"\1" * size
            await until(lambda: not client.connection.calls)
            await until(lambda: not any(known.machine.calls for known in server._connections))
    assert answered
