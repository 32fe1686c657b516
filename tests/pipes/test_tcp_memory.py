"""Reading fails as nothing else does, for want of memory: one connection ends, and nothing spins."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest
from anyio import BrokenResourceError

import aiordma
from aiordma.pipes.tcp import TcpPipe
from tests.health import until
from tests.poor import Poor, is_quiet
from tests.roles import LOCAL

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        yield one, other


async def test_a_little_memory_is_enough(pair: tuple[socket.socket, socket.socket]) -> None:
    sock = Poor(pair[0], 4096)
    pipe, data = TcpPipe(sock), bytes(range(256)) * 100
    pipe.on_readable = lambda: None
    assert pipe.try_receive(1 << 20) is None
    pair[1].sendall(data)
    found = b""

    def took_all() -> bool:
        nonlocal found
        found += pipe.try_receive(1 << 20) or b""
        return len(found) == len(data)

    await until(took_all)
    assert found == data
    pipe.close()


async def test_without_memory_the_connection_ends(pair: tuple[socket.socket, socket.socket]) -> None:
    sock = Poor(pair[0], 1 << 20)
    pipe, told = TcpPipe(sock), 0

    def readable() -> None:
        nonlocal told
        told += 1

    pipe.on_readable = readable
    assert pipe.try_receive(10) is None
    sock.room = 0
    pair[1].sendall(b"data")
    await until(lambda: pipe.error is not None)
    await is_quiet(lambda: sock.calls)
    assert isinstance(pipe.error, MemoryError)
    assert told
    with pytest.raises(BrokenResourceError, match="MemoryError"):
        pipe.try_receive(10)
    with pytest.raises(BrokenResourceError, match="MemoryError"):
        pipe.try_send(b"x")
    pipe.close()


async def test_datagrams_are_dropped() -> None:
    async with await aiordma.open_datagram_endpoint(
        (LOCAL, 0), config=aiordma.Config(mode="tcp")
    ) as endpoint:
        sock: Any = Poor(endpoint._sock, 4096)
        endpoint._sock = sock
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            for _ in range(3):
                other.sendto(b"data", endpoint.local_address)
        await until(lambda: sock.calls >= 3)
        await is_quiet(lambda: sock.calls)


async def test_accepting_pauses() -> None:
    async with await aiordma.listen(LOCAL) as listener:
        acceptor = listener._acceptor
        sock: Any = Poor(acceptor._sockets[0], 0)
        acceptor.accept_from(sock)
        assert (sock.calls, acceptor.watching) == (1, False)
        await until(lambda: acceptor.watching)
