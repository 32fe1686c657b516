"""Descriptors that transports use: kept from others, and no longer than their sockets are open."""

from __future__ import annotations

import asyncio
import asyncio.trsock
import gc
import socket
from typing import TYPE_CHECKING, Any

import pytest

from aiordma.compat import claims, own_methods
from aiordma.testing.memory import memory_pipe_pair
from tests.private import needs

from .recorder import Recorder, connect_pipe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio


@pytest.fixture
async def watched(anyio_backend: Any) -> AsyncIterator[tuple[Any, Any, socket.socket, Any]]:
    """A transport, its protocol, its socket, and the loop's `add_reader()`."""
    loop = asyncio.get_running_loop()
    uses_uvloop = anyio_backend[1]["use_uvloop"]
    if uses_uvloop:
        claims.protect(type(loop))
    sock, other = socket.socketpair()
    protocol = Recorder()
    extra = {"socket": asyncio.trsock.TransportSocket(sock)}
    with sock, other:
        transport = connect_pipe(memory_pipe_pair(64)[0], protocol, extra=extra)
        yield transport, protocol, sock, loop
        transport.close()
        await protocol.lost
    if uses_uvloop:
        own_methods.restore([type(loop)])


@needs("_transports")
async def test_the_descriptor_is_refused_until_the_transport_closes(watched: Any) -> None:
    transport, _, sock, loop = watched
    gc.collect()
    for method in (loop.add_reader, loop.add_writer):
        with pytest.raises(RuntimeError, match=r"is used by transport <RingTransport open"):
            method(sock.fileno(), print)
    transport.close()
    loop.add_reader(sock.fileno(), print)
    loop.remove_reader(sock.fileno())


async def test_a_socket_that_is_closed_leaves_its_number_to_others(watched: Any) -> None:
    """The connection may be lost, and the transport learn of it later."""
    transport, _, sock, loop = watched
    number = sock.fileno()
    sock.close()
    one, other = socket.socketpair()
    with one, other:
        fresh = one if one.fileno() == number else other
        assert fresh.fileno() == number
        came = loop.create_future()
        loop.add_reader(number, came.set_result, None)
        (other if fresh is one else one).send(b"x")
        await came
        loop.remove_reader(number)
    assert not transport.is_closing()
