"""What other processes do in many tests."""

from __future__ import annotations

import contextlib
import random
import socket
from typing import TYPE_CHECKING, Any

import anyio

import aiordma
from aiordma.links import engine as engines
from tests.tuned import tuned

if TYPE_CHECKING:
    import asyncio

    from tests.program import Control

LOCAL = "127.0.0.1"


def port_of(server: asyncio.AbstractServer) -> int:
    """The port of asyncio's server or of aiordma's; the class that they share has no sockets."""
    port: int = server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    return port


async def echo(stream: aiordma.RdmaStream) -> None:
    async with stream:
        with contextlib.suppress(anyio.BrokenResourceError):
            async for part in stream:
                await stream.send(part)


async def statistics() -> dict[str, Any]:
    """The running loop's engine, in numbers."""
    return (await engines.current()).statistics()


async def say_statistics(control: Control) -> None:
    """Whenever anything is heard."""
    with contextlib.suppress(EOFError):
        while True:
            await control.hear()
            control.say(await statistics())


async def echo_server(control: Control, **settings: Any) -> None:
    """Echoes. Says its port; then its engine's statistics whenever it hears anything."""
    async with await aiordma.listen(LOCAL, 0, config=tuned(**settings)) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            control.say(listener.port)
            await say_statistics(control)
            tasks.cancel_scope.cancel()


async def pumping_clients(control: Control, port: int, streams: int = 1, **settings: Any) -> None:
    """Sends for ever on streams to an echo server, and says the number of bytes whenever some came back."""

    async def pump(number: int) -> None:
        stream = await aiordma.connect(LOCAL, port, config=tuned(**settings))
        control.say(stream.path)

        async def send() -> None:
            while True:
                await stream.send(bytes([number]) * 30_000)

        async with stream, anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            async for part in stream:
                assert set(part) == {number}
                control.say(len(part))

    async with anyio.create_task_group() as tasks:
        for number in range(streams):
            tasks.start_soon(pump, number)
        await control.heard_all()
        tasks.cancel_scope.cancel()


def free_port() -> int:
    """A port for a program that must be told one.

    It is below those that the kernel gives to connections, which any process may get in between.
    """
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind((LOCAL, port))
            return port
