"""What a connection on TCP has accepted and the kernel has not taken: it arrives behind a close, also when
the loop ends there, or the peer gets an error; and nobody waits for a peer that reads nothing."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import struct
import termios
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

import aiordma
from aiordma import wake
from aiordma.channels import channel
from aiordma.config import Config
from aiordma.proto.record import greeting
from tests.health import until
from tests.processes import FULL_PATIENCE
from tests.virtual import in_virtual_time

LOCAL = "127.0.0.1"
MOST = 1 << 20


class Peer:
    """A plain socket that greets, and reads when it is told to."""

    def __init__(self, hello: bytes) -> None:
        self._server = socket.create_server((LOCAL, 0))
        self._server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        self.port = self._server.getsockname()[1]
        self._hello = hello
        self.may_read = threading.Event()
        self.received, self.error = 0, ""
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with self._server, self._server.accept()[0] as sock:
            self._sock = sock
            sock.settimeout(FULL_PATIENCE)
            sock.sendall(self._hello)
            self.may_read.wait(FULL_PATIENCE)
            try:
                while data := sock.recv(1 << 16):
                    self.received += len(data)
            except OSError as error:
                self.error = type(error).__name__

    async def take(self) -> None:
        """Read what is here, instead of its thread; then some more is, or an error."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._sock.fileno(), 1 << 12):
                self.received += len(data)
        await until(lambda: select.select([self._sock], [], [], 0)[0])


def small(sock: socket.socket) -> socket.socket:
    """The kernel would take more and more."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
    return sock


async def open_channel(port: int) -> tuple[Any, socket.socket, int]:
    """It, its socket, and all the bytes that the peer is to get once it is closed."""
    connected = await channel.connect(LOCAL, port, kind=2, config=Config(device="none"))
    carrier: Any = connected.channel
    sock = small(carrier._pipe._sock)
    sent = 16
    while connected.channel.try_send(b"", bytes(10_000)):
        sent += 10_008
    return connected, sock, sent + 8  # it ends with a frame


async def open_datagrams(port: int) -> tuple[Any, socket.socket, int]:
    config = Config(device="none", ring_bytes=MOST)
    connected = await aiordma.connect_datagram(LOCAL, port, config=config)
    carrier: Any = connected._pipe
    sock = small(carrier.pipe._sock)
    await connected.send(bytes(MOST - 4))
    return connected, sock, len(greeting(MOST)) + MOST


HELLOS = {
    open_channel: b"aiordma\x02" + struct.pack(">BxxxI", 2, 1 << 20),
    open_datagrams: greeting(MOST - 4),
}
each_kind = pytest.mark.parametrize("open_one", HELLOS, ids=["channel", "datagrams"])


@contextlib.contextmanager
def peer_of(open_one: Any) -> Iterator[Peer]:
    peer = Peer(HELLOS[open_one])
    peer.thread.start()
    try:
        yield peer
    finally:
        peer.may_read.set()
        peer.thread.join(FULL_PATIENCE)


@each_kind
def test_it_arrives_when_the_loop_ends(open_one: Any, anyio_backend: Any) -> None:
    with peer_of(open_one) as peer:
        expected = 0

        async def main() -> None:
            nonlocal expected
            connected, _, expected = await open_one(peer.port)
            await connected.aclose()
            wake.current().at_loop_end(peer.may_read.set)  # the last one that is registered comes first

        anyio.run(main, backend=anyio_backend[0], backend_options=anyio_backend[1])
    assert (peer.received, peer.error) == (expected, "")


@each_kind
def test_a_peer_that_reads_nothing_when_the_loop_ends(open_one: Any, anyio_backend: Any) -> None:
    """It must not take for whole what is cut off."""
    with peer_of(open_one) as peer:
        expected = 0

        async def main() -> None:
            nonlocal expected
            connected, _, expected = await open_one(peer.port)
            await connected.aclose()

        anyio.run(main, backend=anyio_backend[0], backend_options=anyio_backend[1])
    assert peer.received < expected
    assert peer.error == "ConnectionResetError"


@each_kind
@pytest.mark.anyio
@in_virtual_time
async def test_a_peer_that_reads_nothing(open_one: Any) -> None:
    """The connection is closed, and its descriptor free, half a minute after the kernel took something."""
    with peer_of(open_one) as peer:
        connected, sock, expected = await open_one(peer.port)
        await connected.aclose()
        await anyio.sleep(29)
        assert sock.fileno() >= 0
        await anyio.sleep(2)
        for _ in range(20):  # on a busy machine the kernel's buffers may have been filled in this time
            if sock.fileno() < 0:
                break
            await anyio.sleep(30)
        assert sock.fileno() < 0
    assert peer.received < expected
    assert peer.error == "ConnectionResetError"


@each_kind
@pytest.mark.anyio
async def test_it_arrives_behind_the_close(open_one: Any) -> None:
    with peer_of(open_one) as peer:
        connected, _, expected = await open_one(peer.port)
        await connected.aclose()
        peer.may_read.set()
        await until(lambda: not peer.thread.is_alive())
    assert (peer.received, peer.error) == (expected, "")


@each_kind
@pytest.mark.anyio
@in_virtual_time
async def test_a_peer_that_reads_slowly(open_one: Any) -> None:
    """It may take as long as it likes, as long as it takes something in half a minute."""
    with peer_of(open_one) as peer:
        connected, _, expected = await open_one(peer.port)
        await connected.aclose()
        began = anyio.current_time()
        while peer.received < expected:
            await peer.take()
            await anyio.sleep(20)
        assert anyio.current_time() - began > 60
    assert (peer.received, peer.error) == (expected, "")


@pytest.mark.anyio
@in_virtual_time
async def test_what_the_kernel_has_taken_arrives_when_time_is_up() -> None:
    """Nothing is left here then, and nothing is to be cut off."""
    with peer_of(open_channel) as peer:
        connected, sock, expected = await open_channel(peer.port)
        carrier: Any = connected.channel
        await connected.aclose()
        while carrier._queued_bytes:
            await peer.take()
            await checkpoint()
        assert fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)) != bytes(4)  # the peer's kernel does not have it
        await anyio.sleep(100)
        assert sock.fileno() < 0
    assert (peer.received, peer.error) == (expected, "")
