"""A TLS session in which nothing can be sent any more: what the peer sent before is received first."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from aiordma.pipes.tls import TlsPipe

pytestmark = pytest.mark.anyio


class Torn:
    """A session whose ciphertext the kernel refuses; what comes needs no decryption."""

    unsent, at_end, failure = 1, False, None
    session = SimpleNamespace(server_side=True)

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def flush(self) -> bool:
        raise ConnectionResetError("refused")

    def send(self, data: Any) -> int:
        return len(data)

    def shutdown(self, _how: int) -> None:
        """Nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class Endless(Torn):
    """Its peer never stops sending."""

    def recv(self, size: int) -> bytes:
        return bytes(size)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        yield one, other


@pytest.mark.parametrize("failing", ["try_send", "send_eof"])
async def test_what_has_come_is_received_first(
    ends: tuple[socket.socket, socket.socket], failing: str
) -> None:
    pipe, other = TlsPipe(Torn(ends[0])), ends[1]  # type: ignore[arg-type]
    other.sendall(b"why not")
    other.close()
    if failing == "try_send":
        assert pipe.try_send(b"more") == 4
    else:
        pipe.send_eof()
    assert pipe.try_receive(100) == b"why not"
    assert pipe.try_receive(100) == b""
    pipe.abort()


async def test_a_peer_that_goes_on_sending_is_not_waited_for(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    pipe = TlsPipe(Endless(ends[0]))  # type: ignore[arg-type]
    assert pipe.try_send(b"more") == 4
    received = pipe.try_receive(64 << 20)
    assert received is not None
    assert 1 << 20 < len(received) <= 16 << 20
    with pytest.raises(anyio.BrokenResourceError):
        pipe.try_receive(1)
    pipe.abort()
