"""Roles of other processes in the tests of datagrams."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from aiordma.datagrams.connection import DatagramConnection, connect_datagram, listen_datagram
from aiordma.datagrams.endpoint import open_datagram_endpoint
from aiordma.verbs import softlib
from tests.links.devices.kit import TWO
from tests.tuned import tuned

from .test_endpoint import parts_of

if TYPE_CHECKING:
    from tests.program import Control

LOCAL = "127.0.0.1"


async def echo(connection: DatagramConnection) -> None:
    async with connection:
        with contextlib.suppress(anyio.BrokenResourceError):
            async for message in connection:
                await connection.send(message)


async def echo_server(control: Control) -> None:
    """Echoes, and reports its port."""
    async with await listen_datagram(LOCAL) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        control.say(listener.port)
        await control.heard_all()
        tasks.cancel_scope.cancel()


async def sprayer(control: Control, port: int, size: int) -> None:
    """Sends numbered messages until killed; reports once there are many."""
    connection = await connect_datagram(LOCAL, port, mode="rdma")
    number = 0
    while True:
        await connection.send(number.to_bytes(4) + bytes(size))
        number += 1
        if number == 1000:
            control.say("spraying")


async def holder(control: Control, port: int, way: str) -> None:
    """Sends numbered messages until some of them wait for room in this process."""
    connection = await connect_datagram(LOCAL, port, mode="rdma")
    control.say("connected")
    await control.hear()
    messages = (number.to_bytes(4) + bytes(1000) for number in itertools.count())
    with contextlib.suppress(anyio.WouldBlock):
        for message in messages:
            connection.send_nowait(message)
    if way == "send_soon":
        connection.send_soon([next(messages), next(messages)])
        control.say("waits")
        await anyio.sleep_forever()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection.send, next(messages))
        await anyio.wait_all_tasks_blocked()
        control.say("waits")


async def reader(control: Control, port: int, count: int) -> None:
    """Reads so many messages when it is told that they were sent, and says so."""
    connection = await connect_datagram(LOCAL, port, mode="rdma")
    await control.hear()
    for _ in range(count):
        await connection.receive()
    control.say("read")
    await anyio.sleep_forever()


async def endpoint_echo(control: Control, port: int) -> None:
    """An endpoint that echoes everything, and reports its port."""
    async with await open_datagram_endpoint((LOCAL, port)) as endpoint, anyio.create_task_group() as tasks:

        async def serve() -> None:
            async for item in endpoint:
                await endpoint.send(item)

        tasks.start_soon(serve)
        control.say(endpoint.local_address[1])
        await control.heard_all()
        tasks.cancel_scope.cancel()


async def failing_echo(control: Control, **settings: Any) -> None:
    """Echoes everything by RDMA, and reports its port. Its device fails when it is told to."""
    config = tuned(**{**TWO, **settings})
    async with (
        await open_datagram_endpoint((LOCAL, 0), config=config, mode="rdma") as endpoint,
        anyio.create_task_group() as tasks,
    ):

        async def serve() -> None:
            async for item in endpoint:
                await endpoint.send(item)

        tasks.start_soon(serve)
        control.say(endpoint.local_address[1])
        with contextlib.suppress(EOFError):
            while await control.hear() == "port":
                name = parts_of(endpoint).engine.backend.name
                softlib.load().port(name, up=False)
                before = endpoint.statistics().moves
                while endpoint.statistics().moves == before:
                    await anyio.lowlevel.checkpoint()
                softlib.load().port(name, up=True)
        tasks.cancel_scope.cancel()


async def endpoints_in_turn(control: Control, port: int, count: int) -> None:
    """Endpoints that each exchange one datagram with the endpoint on ``port``, and are closed."""
    for number in range(count):
        async with await open_datagram_endpoint((LOCAL, 0), mode="rdma") as endpoint:
            await endpoint.resolve((LOCAL, port))
            await endpoint.send((b"%d" % number, (LOCAL, port)))
            assert await endpoint.receive() == (b"%d" % number, (LOCAL, port))
    control.say("done")
    await control.heard_all()
