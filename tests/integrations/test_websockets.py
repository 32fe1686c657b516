"""websockets: its client by the adapter, its server on a loop of ours."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from tests.roles import LOCAL, port_of

if TYPE_CHECKING:
    from collections.abc import Iterator

websockets: Any = pytest.importorskip("websockets", reason="the extra aiordma[websockets] is not installed")


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=lambda: aiordma.new_event_loop(uvloop=request.param)) as runner:
        yield runner


async def echo(websocket: Any) -> None:
    async for message in websocket:
        await websocket.send(message)


def test_both_ends(runner: asyncio.Runner) -> None:
    from websockets.asyncio.server import serve

    from aiordma.integrations.websockets import connect

    async def main() -> None:
        with anyio.fail_after(30):
            async with serve(echo, LOCAL, 0) as server:
                async with connect(f"ws://{LOCAL}:{port_of(server)}", mode="rdma") as websocket:
                    for message in ("hello", b"x" * 100_000):
                        await websocket.send(message)
                        assert await websocket.recv() == message
                    assert websocket.transport.get_extra_info("aiordma.path") == "rdma"
                async with connect(f"ws://{LOCAL}:{port_of(server)}", mode="tcp") as websocket:
                    assert websocket.transport.get_extra_info("aiordma.path") == "tcp"

    runner.run(main())


def test_a_plain_server_and_a_given_socket() -> None:
    from websockets.asyncio.server import serve

    from aiordma.config import Config
    from aiordma.integrations.websockets import connect

    async def main() -> None:
        with anyio.fail_after(30):
            async with serve(echo, LOCAL, 0) as server:
                address = (LOCAL, port_of(server))
                sock = await anyio.to_thread.run_sync(connected, address)
                choices: list[dict[str, Any]] = [{}, {"sock": sock}]
                for options in choices:
                    where = f"ws://{LOCAL}:{address[1]}"
                    async with connect(where, config=Config(head_start_ms=10), **options) as websocket:
                        await websocket.send("hello")
                        assert await websocket.recv() == "hello"
                        assert websocket.transport.get_extra_info("aiordma.path") == "tcp"

    asyncio.run(main())


def connected(address: tuple[str, int]) -> socket.socket:
    """A connected socket that does not block."""
    sock = socket.create_connection(address)
    sock.setblocking(False)
    return sock
