"""A queue length that ``listen(2)`` cannot take: the error, and no socket that stays open."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest

import aiordma
from aiordma.compat.datagram import create_datagram_server
from aiordma.datagrams.connection import listen_datagram
from aiordma.links import engine as engines
from tests.roles import LOCAL

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

pytestmark = pytest.mark.anyio

WRONG = [1 << 31, 1 << 40, "many"]
#: As no arithmetic takes them: what Python says of each must be the words of a socket's `listen()`.
NO_INTEGER = ["many", "1", 1.1, None, [], b"1"]


async def _handle(*_: object) -> None:
    """Is never called."""


SURFACES: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
    "start_server": lambda **options: aiordma.start_server(_handle, LOCAL, 0, **options),
    "create_server": lambda **options: aiordma.create_server(asyncio.Protocol, LOCAL, 0, **options),
    "datagram server": lambda **options: create_datagram_server(asyncio.DatagramProtocol, LOCAL, **options),
    "listen": lambda **options: _entered(aiordma.listen(LOCAL, **options)),
    "listen_datagram": lambda **options: _entered(listen_datagram(LOCAL, **options)),
}


async def _entered(listener: Any) -> None:
    async with listener:
        """Never."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[socket.socket]:
    """The sockets that are bound from now on, kept alive: they are closed by a call, or stay open."""
    bound: list[socket.socket] = []

    class Bound(socket.socket):
        def bind(self, address: Any) -> None:
            super().bind(address)
            bound.append(self)

    monkeypatch.setattr(socket, "socket", Bound)
    return bound


@pytest.mark.parametrize("backlog", WRONG)
@pytest.mark.parametrize("mode", ["rdma", "tcp"])
@pytest.mark.parametrize("surface", SURFACES)
async def test_nothing_stays_open(made: list[socket.socket], surface: str, mode: str, backlog: Any) -> None:
    with pytest.raises((OverflowError, TypeError)):
        await SURFACES[surface](mode=mode, backlog=backlog)
    at_port = [sock for sock in made if sock.type & socket.SOCK_STREAM and sock.family == socket.AF_INET]
    assert at_port
    assert [sock for sock in at_port if sock.fileno() != -1] == []


@pytest.mark.parametrize("backlog", NO_INTEGER)
@pytest.mark.parametrize("mode", ["rdma", "tcp"])
@pytest.mark.parametrize("surface", SURFACES)
async def test_what_is_no_integer_is_called_so(surface: str, mode: str, backlog: Any) -> None:
    with pytest.raises(TypeError, match="integer"):
        await SURFACES[surface](mode=mode, backlog=backlog)


class _Five:
    def __index__(self) -> int:
        return 5


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
async def test_an_integer_of_the_programs_own(mode: Any) -> None:
    backlog: Any = _Five()
    server = await aiordma.start_server(_handle, LOCAL, 0, mode=mode, backlog=backlog)
    assert server.is_serving()
    server.close()


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
async def test_a_given_socket_stays_the_programs(mode: Any) -> None:
    with socket.socket() as given:
        given.bind((LOCAL, 0))
        with pytest.raises(OverflowError):
            await aiordma.create_server(asyncio.Protocol, sock=given, mode=mode, backlog=1 << 31)
        assert given.getsockname()[1]
        server = await aiordma.create_server(asyncio.Protocol, sock=given, mode=mode)
        server.close()


async def test_its_service_ends() -> None:
    """The engine does not offer rings for a listener that is none."""
    (await aiordma.start_server(_handle, LOCAL, 0, mode="rdma")).close()
    engine = engines.running()
    assert engine is not None
    before = set(engine.grants.listeners)
    with pytest.raises(OverflowError) as caught:
        await aiordma.start_server(_handle, LOCAL, 0, mode="rdma", backlog=1 << 31)
    assert caught.value.__traceback__ is not None
    assert set(engine.grants.listeners) == before
