"""A process that did not run for a while finds its deadlines past and its peer's words in the socket."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from aiordma.config import Config
from aiordma.negotiation.clc_io import ClcIO
from aiordma.negotiation.first_bytes import FirstBytes
from aiordma.negotiation.options import PathOptions
from aiordma.proto.events import Failed, Proposed
from aiordma.proto.handshake import ServerHandshake, Timeouts

from .serving import tcp_pair
from .test_hostile import PROPOSAL

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio


class Pause:
    """In place of a waiter: the process stands still for an hour, in which ``data`` comes."""

    def __init__(self, io: ClcIO, client: socket.socket, data: bytes) -> None:
        self._io, self._client, self._data = io, client, data

    def clear(self) -> None:
        """As if it had been set before."""

    async def wait_until(self, deadline: float) -> bool:
        self._client.sendall(self._data)
        self._io.now = lambda: deadline + 3600
        return False


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with tcp_pair() as (client, server):
        client.setblocking(False)
        yield client, server


@contextlib.contextmanager
def standing_still(io: ClcIO, client: socket.socket, data: bytes) -> Iterator[None]:
    io._waiter = Pause(io, client, data)  # type: ignore[assignment]
    try:
        yield
    finally:
        io._waiter = None


async def test_a_message_that_has_come_counts(ends: tuple[socket.socket, socket.socket]) -> None:
    client, server = ends
    with ClcIO(server) as io, standing_still(io, client, PROPOSAL):
        handshake = ServerHandshake(Timeouts(), io.now())
        events = await io.receive(handshake)
        assert [type(event) for event in events] == [Proposed]


async def test_half_a_message_does_not(ends: tuple[socket.socket, socket.socket]) -> None:
    client, server = ends
    with ClcIO(server) as io, standing_still(io, client, PROPOSAL[10:50]):
        handshake = ServerHandshake(Timeouts(), io.now())
        handshake.receive(PROPOSAL[:10], io.now())
        events = await io.receive(handshake)
        assert any(isinstance(event, Failed) for event in events)


async def test_a_first_word_that_has_come_counts(ends: tuple[socket.socket, socket.socket]) -> None:
    client, server = ends
    with ClcIO(server) as io, standing_still(io, client, PROPOSAL):
        assert await FirstBytes(io, PathOptions(Config(), "auto")).are_clc()
