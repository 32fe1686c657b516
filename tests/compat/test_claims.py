"""Descriptors that transports use: kept from others, and no longer than their sockets are open."""

from __future__ import annotations

import asyncio
import asyncio.trsock
import contextlib
import fcntl
import gc
import socket
from typing import TYPE_CHECKING, Any

import pytest

import aiordma
from aiordma.compat import claims, own_methods
from aiordma.config import Config
from aiordma.testing.memory import memory_pipe_pair
from tests.health import settle, until
from tests.private import needs
from tests.roles import LOCAL, port_of
from tests.streams.pairs import tls_contexts
from tests.world import DEVICE

from .recorder import Recorder, connect_pipe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

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


async def connected(kind: str) -> tuple[Any, Any, Any]:
    """A transport of this kind, and its server; the server's ends close when they are spoken to."""
    if kind == "datagrams":
        server, _ = await aiordma.create_datagram_endpoint(asyncio.DatagramProtocol, (LOCAL, 0))
        transport, _ = await aiordma.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=server.get_extra_info("sockname")
        )
        return transport, server, None
    contexts: Any = (None, None)
    options: dict[str, Any] = {"config": Config(device=DEVICE)}
    if kind == "tls":
        contexts = tls_contexts()
        options = {"config": Config(device="none"), "rdma_outside_tls": True}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    accepting = await aiordma.start_server(serve, LOCAL, 0, ssl=contexts[1], **options)
    _, writer = await aiordma.open_connection(LOCAL, port_of(accepting), ssl=contexts[0], **options)
    return writer.transport, accepting, writer


@contextlib.asynccontextmanager
async def ended(kind: str, end: str) -> AsyncIterator[int]:
    """The number that a connection's socket had, which has ended in this way."""
    loop = asyncio.get_running_loop()
    # Newer Pythons close the transport of a writer that is dropped.
    transport, server, writer = await connected(kind)
    shown = transport.get_extra_info("socket")
    number: int = shown.fileno()
    if kind != "datagrams":
        with pytest.raises(RuntimeError, match="is used by transport"):
            loop.add_reader(number, print)
    if end == "peer":
        (transport.sendto if kind == "datagrams" else transport.write)(b"x")
        if kind == "datagrams":
            server.close()
            transport.close()
    else:
        getattr(transport, end)()
    await until(lambda: shown.fileno() == -1)
    yield number
    transport.abort()  # a stream may stay open behind its peer's end, when its socket is closed
    server.close()
    del writer


@contextlib.contextmanager
def pair_at(number: int) -> Iterator[tuple[socket.socket, socket.socket] | None]:
    """A pair of sockets, the first with this number; None: something else has it by now, a thread perhaps."""
    with contextlib.ExitStack() as stack:
        one, other = (stack.enter_context(sock) for sock in socket.socketpair())
        if other.fileno() == number:
            one, other = other, one
        elif one.fileno() != number:
            one = stack.enter_context(socket.socket(fileno=fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, number)))
        yield (one, other) if one.fileno() == number else None


@pytest.mark.parametrize("end", ["close", "abort", "peer"])
@pytest.mark.parametrize("kind", ["writer", "tls", "datagrams"])
async def test_the_number_of_an_ended_connection_is_free(kind: str, end: str, anyio_backend: Any) -> None:
    loop: Any = asyncio.get_running_loop()
    uses_uvloop = anyio_backend[1]["use_uvloop"]
    if uses_uvloop:
        claims.protect(type(loop))
    tried = False
    while not tried:
        async with ended(kind, end) as number:
            with pair_at(number) as pair:
                if pair is not None:
                    came = loop.create_future()
                    loop.add_reader(number, came.set_result, None)
                    pair[1].send(b"x")
                    await came
                    loop.remove_reader(number)
                    tried = True
    await settle()
    if uses_uvloop:
        own_methods.restore([type(loop)])
