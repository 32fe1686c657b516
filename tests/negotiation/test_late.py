"""A process that did not run for a while finds its deadlines past and its peer's words in the socket."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from aiordma.config import Config
from aiordma.negotiation.clc_io import Wire
from aiordma.proto.events import Failed, Proposed
from aiordma.proto.handshake import ServerHandshake, Timeouts

from .serving import tcp_pair
from .test_hostile import PROPOSAL

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio


class Pause:
    """In place of a waiter: the process stands still for an hour, in which ``data`` comes."""

    def __init__(self, wire: Wire, client: socket.socket, data: bytes) -> None:
        self._wire, self._client, self._data = wire, client, data

    def clear(self) -> None:
        """As if it had been set before."""

    async def wait_until(self, deadline: float) -> bool:
        self._client.sendall(self._data)
        self._wire.now = lambda: deadline + 3600
        return False


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with tcp_pair() as pair:
        yield pair


@contextlib.contextmanager
def standing_still(wire: Wire, client: socket.socket, data: bytes) -> Iterator[None]:
    wire._waiter = Pause(wire, client, data)  # type: ignore[assignment]
    try:
        yield
    finally:
        wire._waiter = None


async def test_a_message_that_has_come_counts(ends: tuple[socket.socket, socket.socket]) -> None:
    client, server = ends
    with Wire(server) as wire, standing_still(wire, client, PROPOSAL):
        handshake = ServerHandshake(Timeouts(), wire.now())
        events = await wire.receive(handshake)
        assert [type(event) for event in events] == [Proposed]


async def test_half_a_message_does_not(ends: tuple[socket.socket, socket.socket]) -> None:
    client, server = ends
    with Wire(server) as wire, standing_still(wire, client, PROPOSAL[10:50]):
        handshake = ServerHandshake(Timeouts(), wire.now())
        handshake.receive(PROPOSAL[:10], wire.now())
        events = await wire.receive(handshake)
        assert any(isinstance(event, Failed) for event in events)


async def test_a_first_word_that_has_come_counts(ends: tuple[socket.socket, socket.socket]) -> None:
    client, server = ends
    with Wire(server) as wire, standing_still(wire, client, PROPOSAL):
        assert await wire.peek(Config())
