"""Sockets that programs use by themselves: `--report` counts each connection once, and the rest as ever."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

import aiordma
from aiordma.config import Config
from aiordma.launch import hooks
from tests.private import needs
from tests.roles import LOCAL
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

pytestmark = pytest.mark.usefixtures("cache")
LOOPS: dict[str, Any] = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
REASON = "the program uses the socket itself"


@pytest.fixture(autouse=True)
def _installed(cache: Any) -> Iterator[None]:
    aiordma.install(report=True)
    yield
    aiordma.uninstall()


def rows() -> dict[tuple[str, str, str, str], int]:
    """By path, role of the peer, its address and reason: the report's counts, which it then forgets."""
    assert hooks._installed is not None
    found = dict(hooks._installed.report.counts)
    hooks._installed.report.counts.clear()
    return found


def raw(port: int, number: int = 1) -> dict[tuple[str, str, str, str], int]:
    """The rows of connections of such a program to itself."""
    return {
        ("tcp", "server", f"{LOCAL}:{port}", REASON): number,
        ("tcp", "client", LOCAL, REASON): number,
    }


async def ready(add: Callable[..., None], remove: Callable[..., Any], sock: socket.socket) -> None:
    """As a reactor waits."""
    happened = asyncio.Event()
    add(sock.fileno(), happened.set)
    await happened.wait()
    remove(sock.fileno())


@contextlib.asynccontextmanager
async def by_reactor() -> AsyncIterator[int]:
    """As tornado and twisted connect and accept: the loop only says what is ready."""
    loop = asyncio.get_running_loop()
    with socket.create_server((LOCAL, 0)) as listening, socket.socket() as near:
        for sock in (listening, near):
            sock.setblocking(False)
        port = listening.getsockname()[1]
        near.connect_ex((LOCAL, port))
        await ready(loop.add_reader, loop.remove_reader, listening)
        with listening.accept()[0] as far:
            far.setblocking(False)
            for turn in range(3):
                await ready(loop.add_writer, loop.remove_writer, near)
                near.send(bytes([turn]))
                await ready(loop.add_reader, loop.remove_reader, far)
                assert far.recv(10) == bytes([turn])
            yield port


@contextlib.asynccontextmanager
async def by_sock_methods() -> AsyncIterator[int]:
    loop = asyncio.get_running_loop()
    with socket.create_server((LOCAL, 0)) as listening, socket.socket() as near:
        for sock in (listening, near):
            sock.setblocking(False)
        port = listening.getsockname()[1]
        await loop.sock_connect(near, (LOCAL, port))
        far, _ = await loop.sock_accept(listening)
        with far:
            for sock in (far, near):
                await loop.sock_sendall(sock, b"hello")
            assert await loop.sock_recv(near, 10) == b"hello"
            assert await loop.sock_recv_into(far, bytearray(10)) == 5
            yield port


WAYS = [pytest.param(by_reactor, marks=needs("_add_reader")), by_sock_methods]


def play(loop: str, main: Any) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("way", WAYS)
def test_both_ends_are_counted_once(loop: str, way: Any) -> None:
    async def main() -> None:
        for _ in range(2):  # the second one gets the descriptors of the first
            async with way() as port:
                assert rows() == raw(port)

    play(loop, main())


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.readexactly(5))
    writer.close()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("given", [False, True])
def test_what_is_negotiated_is_not_counted_twice(loop: str, given: bool) -> None:
    """Nor is a socket that the program only connects, for a transport."""

    async def main() -> None:
        async with await asyncio.start_server(echo, LOCAL, 0) as server:
            address = server.sockets[0].getsockname()
            where: dict[str, Any] = {"host": LOCAL, "port": address[1]}
            if given:
                sock = socket.socket()
                sock.setblocking(False)
                await asyncio.get_running_loop().sock_connect(sock, address)
                where = {"sock": sock}
            reader, writer = await asyncio.open_connection(**where)
            writer.write(b"hello")
            assert await reader.read() == b"hello"
            writer.close()
            await writer.wait_closed()
        assert sum(rows().values()) == 2
        assert not [row for row in rows() if row[3] == REASON]

    play(loop, main())


@pytest.mark.parametrize("loop", LOOPS)
def test_other_descriptors_are_left_alone(loop: str) -> None:
    """Pipes, Unix sockets, datagrams, what is closed, and what is none: they work, or fail, as ever."""

    async def main() -> None:
        running = asyncio.get_running_loop()
        reading, writing = os.pipe()
        near, far = socket.socketpair()
        with near, far, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
            datagrams.bind((LOCAL, 0))
            datagrams.connect(datagrams.getsockname())
            for what in (reading, near, datagrams):
                running.add_reader(what, print)
                running.remove_reader(what)
        for each in (reading, writing):
            os.close(each)
        wrongs: tuple[Any, ...] = (near, "text", None, -1)
        for wrong in wrongs:
            with pytest.raises((OSError, ValueError, TypeError, AttributeError)):
                running.add_reader(wrong, print)
        assert rows() == {}

    play(loop, main())


@pytest.mark.parametrize("loop", LOOPS)
def test_endpoints_of_datagrams_are_counted(loop: str) -> None:
    """By the function of the loop, and by aiordma's where it stays on UDP: once each."""
    why = "endpoints of datagrams are not negotiated"

    async def main() -> None:
        running = asyncio.get_running_loop()
        far, _ = await running.create_datagram_endpoint(asyncio.DatagramProtocol, (LOCAL, 0))
        address = far.get_extra_info("sockname")
        near, _ = await running.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=address)
        port = address[1]
        assert rows() == {
            ("udp", "client", f"of {LOCAL}:{port}", why): 1,
            ("udp", "server", f"{LOCAL}:{port}", why): 1,
        }
        ours, _ = await aiordma.create_datagram_endpoint(
            asyncio.DatagramProtocol, (LOCAL, 0), allow_broadcast=True, config=Config(device=DEVICE)
        )
        ((path, role, _, reason),) = rows()
        assert (path, role) == ("udp", "client")
        assert "allow_broadcast given, for UDP only" in reason
        for each in (far, near, ours):
            each.close()
        await asyncio.sleep(0)

    play(loop, main())


@pytest.mark.parametrize("loop", LOOPS)
def test_nothing_is_watched_without_a_report(loop: str) -> None:
    aiordma.uninstall()
    before = asyncio.SelectorEventLoop.sock_recv, asyncio.SelectorEventLoop.add_reader
    own = uvloop.Loop.sock_recv
    aiordma.install()
    assert (asyncio.SelectorEventLoop.sock_recv, asyncio.SelectorEventLoop.add_reader) == before
    assert uvloop.Loop.sock_recv is own
