"""What a reader is told when a send finds first that a TCP connection is over."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING

import pytest
from anyio import BrokenResourceError

from aiordma.pipes.tcp import TcpPipe

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio


class Failing(socket.socket):
    """As Linux: the first send reports the error, and reads find an end behind what had come."""

    number = 0
    reset = False

    def send(self, *_: object) -> int:
        number, self.number = self.number, errno.EPIPE
        raise OSError(number, os.strerror(number))

    def recv(self, *args: int) -> bytes:
        if self.reset:
            raise ConnectionResetError
        try:
            return super().recv(*args)
        except BlockingIOError:
            if self.number != errno.EPIPE:
                raise
            return b""


@pytest.fixture
def pair() -> Iterator[tuple[Failing, socket.socket]]:
    one, other = socket.socketpair()
    with Failing(fileno=one.detach()) as failing, other:
        failing.setblocking(False)
        yield failing, other


@pytest.mark.parametrize("name", ["ECONNRESET", "ETIMEDOUT", "EHOSTUNREACH", "ENETUNREACH"])
async def test_no_end_that_the_peer_has_not_sent(name: str, pair: tuple[Failing, socket.socket]) -> None:
    """A reset, a host that is silent, one that cannot be reached: what came before is not the whole."""
    sock, other = pair
    pipe, sock.number = TcpPipe(sock), getattr(errno, name)
    other.sendall(b"before")
    with pytest.raises(BrokenResourceError, match="TCP connection is lost"):
        pipe.try_send(b"x")
    assert pipe.try_receive(100) == b"before"
    assert not pipe.at_eof
    with pytest.raises(BrokenResourceError) as caught:
        pipe.try_receive(100)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == getattr(errno, name)
    pipe.close()


@pytest.mark.parametrize("name", ["EPIPE", "ETIMEDOUT"])
async def test_an_end_that_was_read_stays(name: str, pair: tuple[Failing, socket.socket]) -> None:
    """Also when the peer is silent behind it."""
    sock, other = pair
    pipe, sock.number = TcpPipe(sock), getattr(errno, name)
    other.sendall(b"all")
    other.shutdown(socket.SHUT_WR)
    assert bytes(pipe.view()) == b"all"
    pipe.consume(3)
    pipe.look()
    assert pipe.try_receive(100) == b""
    with pytest.raises(BrokenResourceError, match="TCP connection is lost"):
        pipe.try_send(b"x")
    assert pipe.try_receive(100) == b""
    assert pipe.at_eof
    pipe.close()


async def test_an_end_that_was_not_read_yet_is_found(pair: tuple[Failing, socket.socket]) -> None:
    """A reset behind the peer's end is EPIPE: what it sent is whole."""
    sock, other = pair
    pipe, sock.number = TcpPipe(sock), errno.EPIPE
    other.sendall(b"all")
    other.shutdown(socket.SHUT_WR)
    with pytest.raises(BrokenResourceError, match="TCP connection is lost"):
        pipe.try_send(b"x")
    assert pipe.try_receive(100) == b"all"
    assert pipe.try_receive(100) == b""
    pipe.close()


@pytest.mark.parametrize("how", ["send", "look"])
async def test_a_callback_that_fails(how: str, pair: tuple[Failing, socket.socket]) -> None:
    """The other direction learns of the end, too, and no operation raises what the callback raised."""
    sock, _ = pair
    pipe, called = TcpPipe(sock), list[str]()

    def failing() -> None:
        called.append("readable")
        raise RuntimeError("of the program's")

    pipe.on_readable, pipe.on_writable = failing, lambda: called.append("writable")
    if how == "send":
        sock.number = errno.ECONNRESET
        with pytest.raises(BrokenResourceError, match="TCP connection is lost"):
            pipe.try_send(b"x")
    else:
        sock.reset = True
        pipe.look()
    assert called[:2] == ["readable", "writable"]
    pipe.close()
