"""What a stream on TCP leaves in the kernel: all that its program has not asked for."""

from __future__ import annotations

import array
import fcntl
import socket
import termios
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aiordma.pipes.tcp import TcpPipe
from aiordma.streams.stream import RdmaStream
from tests.health import settle, until
from tests.streams.pairs import interpreted_tcp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["compiled", "interpreted"])
async def ends(request: pytest.FixtureRequest) -> AsyncIterator[tuple[RdmaStream, socket.socket]]:
    """A stream, and its peer's plain socket, which does not block."""
    kind: type[TcpPipe] = TcpPipe if request.param == "compiled" else interpreted_tcp()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = socket.create_connection(listener.getsockname())
        sock, _ = listener.accept()
    for each in (sock, peer):
        each.setblocking(False)
    stream = RdmaStream(kind(sock), local_address=sock.getsockname(), remote_address=peer.getsockname())
    with peer:
        async with stream:
            yield stream, peer


def in_kernel(stream: Any) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(stream._pipe._sock.fileno(), termios.FIONREAD, count)
    return count[0]


async def ask(stream: RdmaStream, peer: socket.socket) -> None:
    """The stream waits for a message, and gets it."""
    async with anyio.create_task_group() as tasks:

        async def receive() -> None:
            assert await stream.receive() == b"message"

        tasks.start_soon(receive)
        await settle()
        peer.send(b"message")


async def test_one_byte_that_nobody_has_asked_for_is_unread(ends: Any) -> None:
    """As of streams of anyio and trio: the process may be killed, and its peer learns what was not read."""
    stream, peer = ends
    await ask(stream, peer)
    peer.send(b"x")
    await settle()
    assert in_kernel(stream) == 1
    assert await stream.receive() == b"x"
    await ask(stream, peer)  # and it is watched again


async def test_who_asks_how_it_is_takes_nothing(ends: Any) -> None:
    stream, peer = ends
    await ask(stream, peer)
    peer.send(b"x")
    for _ in range(2):
        assert not stream.at_eof
        assert not stream.closed
        assert in_kernel(stream) == 1
    assert stream.receive_nowait(1) == b"x"
    with pytest.raises(anyio.WouldBlock):
        stream.receive_nowait(1)
    peer.send(b"y")
    assert stream.receive_nowait(1) == b"y"
    peer.shutdown(socket.SHUT_WR)
    assert stream.at_eof


async def test_a_peer_is_slowed_down_by_who_does_not_read(ends: Any) -> None:
    """Nothing is taken from the kernel while it sends as much as goes, and all of it is there later."""
    stream, peer = ends
    await ask(stream, peer)
    before = stream.statistics().bytes_received
    data = bytes(range(256)) * 4096
    sent, refused = 0, 0
    while refused < 20:
        try:
            sent += peer.send(data)
            refused = 0
        except BlockingIOError:
            refused += 1
        await settle()
    assert stream.statistics().bytes_received == before
    peer.shutdown(socket.SHUT_WR)
    got = bytearray()
    async for part in stream:
        got += part
    assert len(got) == sent


async def test_an_end_is_found_when_it_is_asked_for(ends: Any) -> None:
    stream, peer = ends
    await ask(stream, peer)
    peer.shutdown(socket.SHUT_WR)
    await settle()
    with pytest.raises(anyio.EndOfStream):
        await stream.receive()
    await stream.send(b"answer")
    await until(lambda: len(peer.recv(10, socket.MSG_PEEK)) == 6)
