"""Sockets made of a descriptor that is said to be of another family, as uvicorn does with `--fd`."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio
import uvloop

import aiordma
from aiordma.addresses import family_of

if TYPE_CHECKING:
    from pathlib import Path

LOCAL = "127.0.0.1"
LOOPS: dict[str, Any] = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def _installed(cache: Path) -> None:
    aiordma.install()


def misnamed(sock: socket.socket) -> socket.socket:
    """The same socket as one of AF_UNIX."""
    with sock:
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=sock.detach())


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.readexactly(5))
    writer.close()


async def check(**where: Any) -> None:
    reader, writer = await asyncio.open_connection(**where)
    writer.write(b"hello")
    assert await reader.read() == b"hello"
    assert writer.get_extra_info("aiordma.path") == "rdma"
    writer.close()
    await writer.wait_closed()


def test_the_family_is_the_kernel_s() -> None:
    for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
        sock = misnamed(socket.socket(family))
        with sock:
            assert family_of(sock) == family
        assert family_of(sock) == socket.AF_UNIX  # there is none any more


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("host", [LOCAL, "::1"])
def test_servers_and_clients_of_asyncio(host: str, loop: str) -> None:
    async def main() -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = misnamed(socket.create_server((host, 0), family=family))
        async with await asyncio.start_server(echo, sock=listening) as server:
            port = server.sockets[0].getsockname()[1]
            await check(host=host, port=port)
            await check(sock=misnamed(socket.create_connection((host, port))))

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())


def test_listeners_of_trio() -> None:
    async def main() -> None:
        sock = trio.socket.from_stdlib_socket(misnamed(socket.create_server((LOCAL, 0))))
        listener = trio.SocketListener(sock)
        async with trio.open_nursery() as tasks:

            async def serve(stream: Any) -> None:
                await stream.send_all(await stream.receive_some(5))

            tasks.start_soon(trio.serve_listeners, serve, [listener])
            async with await trio.open_tcp_stream(LOCAL, sock.getsockname()[1]) as stream:
                await stream.send_all(b"hello")
                assert await stream.receive_some(5) == b"hello"
                ours: Any = stream.socket
                assert ours.stream.path == "rdma"
            tasks.cancel_scope.cancel()

    trio.run(main)


@pytest.mark.anyio
async def test_listeners_of_aiordma() -> None:
    async with await aiordma.listen(sockets=[misnamed(socket.create_server((LOCAL, 0)))]) as listener:
        async with anyio.create_task_group() as tasks:

            async def serve(stream: Any) -> None:
                await stream.send(await stream.receive())

            tasks.start_soon(listener.serve, serve)
            async with await aiordma.connect(LOCAL, listener.port, mode="rdma") as stream:
                await stream.send(b"hello")
                assert await stream.receive() == b"hello"
            tasks.cancel_scope.cancel()
