"""Making the TCP connection: names, several addresses, errors that say what was tried."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aiordma.addresses import show
from aiordma.negotiation import tcp_connect
from aiordma.negotiation.tcp_connect import connect_tcp, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio

V4 = socket.AF_INET


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


async def test_addresses_need_no_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*args: object, **kwargs: object) -> Any:
        raise AssertionError("looked up")

    monkeypatch.setattr("aiordma.negotiation.tcp_connect.getaddrinfo", never)
    assert await resolve("127.0.0.1", 80) == [(V4, ("127.0.0.1", 80))]
    assert await resolve("::1", 80) == [(socket.AF_INET6, ("::1", 80, 0, 0))]


async def test_names_are_looked_up() -> None:
    assert (V4, ("127.0.0.1", 80)) in await resolve("localhost", 80)
    with pytest.raises(OSError, match=r"not known|No address|resolution"):
        await resolve("no-such-host.invalid", 80)


async def test_next_address_after_a_refusal(listening: socket.socket, closed_port: int) -> None:
    candidates = [(V4, ("127.0.0.1", closed_port)), (V4, listening.getsockname())]
    with await connect_tcp(candidates) as sock:
        assert sock.getpeername() == listening.getsockname()
        assert not sock.getblocking()


async def test_next_address_beside_a_slow_one(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one never answers: it is given up when the second does."""
    connect = tcp_connect._connect
    slow_ended = False

    async def connect_or_hang(
        family: int, sockaddr: Any, local_host: str | None, question: None
    ) -> socket.socket:
        nonlocal slow_ended
        if sockaddr[0] == "192.0.2.1":
            try:
                await anyio.sleep_forever()
            finally:
                slow_ended = True
        return await connect(family, sockaddr, local_host)

    monkeypatch.setattr(tcp_connect, "_connect", connect_or_hang)
    monkeypatch.setattr(tcp_connect, "_NEXT_ADDRESS_S", 0.001)
    with await connect_tcp([(V4, ("192.0.2.1", 9)), (V4, listening.getsockname())]) as sock:
        assert sock.getpeername() == listening.getsockname()
    assert slow_ended


async def test_all_refused(closed_port: int) -> None:
    with pytest.raises(ConnectionRefusedError, match=f"127.0.0.1:{closed_port}: .*127.0.0.2:{closed_port}: "):
        await connect_tcp([(V4, ("127.0.0.1", closed_port)), (V4, ("127.0.0.2", closed_port))])


async def test_different_failures(closed_port: int) -> None:
    with pytest.raises(OSError, match="cannot connect to") as caught:
        await connect_tcp([(V4, ("127.0.0.1", closed_port)), (V4, ("255.255.255.255", 1))])
    assert "255.255.255.255" in str(caught.value)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, early: int) -> Any:
    """Connections that are not finished when asked again at once, as across a network."""

    class Slow(socket.socket):
        asked = 0

        def connect_ex(self, address: Any) -> int:
            Slow.asked += 1
            return errno.EALREADY if 1 < Slow.asked <= 1 + early else super().connect_ex(address)

    monkeypatch.setattr(socket, "socket", Slow)
    return Slow


@pytest.mark.parametrize("early", [1, 3])
async def test_connection_that_takes_time(listening: socket.socket, slow: Any, early: int) -> None:
    """The loop tells when to ask, and connect() whether it is finished."""
    with await connect_tcp([(V4, listening.getsockname())]) as sock:
        assert sock.getpeername() == listening.getsockname()
    assert slow.asked == 2 + early


@pytest.mark.parametrize("early", [1, 3])
async def test_connection_that_is_refused_after_a_time(closed_port: int, slow: Any, early: int) -> None:
    with pytest.raises(ConnectionRefusedError, match=f"127.0.0.1:{closed_port}"):
        await connect_tcp([(V4, ("127.0.0.1", closed_port))])
    assert slow.asked == 2 + early


async def test_cancelled_connection_closes_its_socket() -> None:
    made: list[socket.socket] = []

    class Remembered(socket.socket):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        queued = [await connect_tcp([(V4, address)])]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "socket", Remembered)
            while len(queued) < 10:  # until the kernel's queue is full, and it answers no more
                with anyio.move_on_after(0.02) as scope:
                    queued.append(await connect_tcp([(V4, address)]))
                if scope.cancelled_caught:
                    break
        assert scope.cancelled_caught
        assert made[-1].fileno() == -1
        for sock in queued:
            sock.close()


def test_addresses_for_people() -> None:
    assert show(("127.0.0.1", 80)) == "127.0.0.1:80"
    assert show(("::1", 80, 0, 0)) == "[::1]:80"
    assert show("/run/socket") == "/run/socket"


async def test_cancelled_in_the_moment_of_connecting(
    listening: socket.socket, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing stays open, and no question is left in the kernel's map."""
    made: list[socket.socket] = []
    asking: set[socket.socket] = set()

    class Question:
        def ask(self, sock: socket.socket, family: int) -> None:
            made.append(sock)
            asking.add(sock)

        def withdraw(self, sock: socket.socket) -> None:
            assert sock.fileno() >= 0
            asking.discard(sock)

    own = tcp_connect._connect
    question: Any = Question()
    with anyio.CancelScope() as scope:

        async def connect(*arguments: Any) -> socket.socket:
            sock = await own(*arguments)
            scope.cancel()
            return sock

        monkeypatch.setattr(tcp_connect, "_connect", connect)
        candidates = [(V4, ("127.0.0.1", closed_port)), (V4, listening.getsockname())]
        await connect_tcp(candidates, question=question)
    assert scope.cancelled_caught
    assert len(made) == 2
    assert {sock.fileno() for sock in made} == {-1}
    assert not asking
