"""Roles of other processes in the tests of datagrams."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio

from aiordma.datagrams.connection import DatagramConnection, connect_datagram, listen_datagram
from aiordma.datagrams.endpoint import open_datagram_endpoint

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
