"""A peer whose TLS has much to say beside the stream: others have their turn, and memory is bounded."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trustme

from aiordma import wake
from aiordma.pipes.tls import TlsLayer

if TYPE_CHECKING:
    from typing_extensions import Buffer

pytestmark = pytest.mark.anyio

KIB, MIB = 1 << 10, 1 << 20


class Flood:
    """The socket of a peer that sends faster than anybody reads, and reads nothing itself."""

    family = socket.AF_UNIX

    def __init__(self, data: bytes, *, times: int = 1, takes: bool = False) -> None:
        self._data, self._at, self._times, self._takes = data, 0, times, takes
        self.given = 0

    def recv(self, size: int, _flags: int = 0) -> bytes:
        part = self._data[self._at : self._at + size]
        self._at += len(part)
        self.given += len(part)
        if self._at == len(self._data) and self._times > 1:
            self._at, self._times = 0, self._times - 1
        if not part:
            raise BlockingIOError
        return part

    def send(self, data: Buffer) -> int:
        if not self._takes:
            raise BlockingIOError
        return memoryview(data).nbytes

    def fileno(self) -> int:
        return -1


def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("server.example").configure_cert(server)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(client)
    return server, client


def client_of(server: ssl.SSLContext, client: ssl.SSLContext, data: bytes = b"") -> TlsLayer:
    """A session whose server has sent its tickets and this, all of which is still in the socket."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    far = server.wrap_bio(incoming, outgoing, server_side=True)
    near = TlsLayer(Flood(b""), client, server_hostname="server.example")  # type: ignore[arg-type]
    ends: Any = (near.session, far)
    for end in ends * 2:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            pass
        if end is near.session:
            incoming.write(near._outgoing.read())
        elif near.session.version() is None or not near.session.cipher():
            near._incoming.write(outgoing.read())
    for at in range(0, len(data), MIB):
        far.write(data[at : at + MIB])
    near.sock = Flood(outgoing.read())  # type: ignore[assignment]
    return near


@pytest.mark.parametrize("peek", [0, socket.MSG_PEEK])
def test_tickets_do_not_hold_the_loop(peek: int) -> None:
    server, client = contexts()
    server.num_tickets = 5000
    layer = client_of(server, client, b"payload")
    flood: Any = layer.sock
    assert len(flood._data) > MIB
    turns, data = 0, b""
    while not data:
        before = flood.given
        try:
            data = layer.recv(100, peek)
        except BlockingIOError:
            turns += 1
            assert flood.given > before
        assert flood.given - before <= 128 * KIB
    assert data == b"payload"
    assert turns >= 8


@pytest.mark.parametrize("size", [256 * KIB, 64 * MIB])
def test_nor_does_a_long_message(size: int) -> None:
    """Nor are its parts copied again with each that comes. What is asked for as a rule comes at once."""
    server, client = contexts()
    sent = bytes(range(256)) * (16 * KIB)
    layer = client_of(server, client, sent)
    flood: Any = layer.sock
    got = b""
    while len(got) < len(sent):
        before = flood.given
        data = layer.recv(size)
        assert len(data) >= min(256 * KIB, len(sent) - len(got))
        assert flood.given - before <= 640 * KIB
        got += data
    assert got == sent


class Asking:
    """A session whose peer wants an answer to each of its messages, such as new keys."""

    def __init__(self, layer: TlsLayer) -> None:
        self._layer = layer

    def read(self, _size: int) -> bytes:
        self._layer._outgoing.write(self._layer._incoming.read())
        raise ssl.SSLWantReadError


def test_answers_that_the_peer_does_not_read_are_limited() -> None:
    _, client = contexts()
    flood = Flood(bytes(64 * KIB), times=1000)
    layer = TlsLayer(flood, client, server_hostname="server.example")  # type: ignore[arg-type]
    layer.session = Asking(layer)  # type: ignore[assignment]

    def go_on_reading() -> None:
        for _ in range(1000):
            with contextlib.suppress(BlockingIOError):
                layer.recv(100)

    with pytest.raises(OSError, match="answers"):
        go_on_reading()
    assert layer.unsent <= 2 * MIB
    with pytest.raises(OSError, match="answers"):
        layer.recv(100)


async def test_a_handshake_gives_way() -> None:
    """OpenSSL skips any number of HelloRequests."""
    _, client = contexts()
    body = bytes(16 * KIB)
    record = b"\x16\x03\x03" + len(body).to_bytes(2) + body
    flood = Flood(record * 64, times=100, takes=True)
    layer = TlsLayer(flood, client, server_hostname="server.example")  # type: ignore[arg-type]
    with anyio.CancelScope() as scope:
        wake.current().call_soon(scope.cancel)
        await layer.handshake(3600)
    assert scope.cancelled_caught
    assert flood.given <= 4 * MIB
