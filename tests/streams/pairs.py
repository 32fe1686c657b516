"""Connected pairs of streams, one maker for each kind of pipe."""

from __future__ import annotations

import functools
import importlib.util
import socket
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import trustme

from aiordma import pipes
from aiordma.config import Config
from aiordma.errors import Code, LinkError
from aiordma.links import engine as engines
from aiordma.pipes.tcp import TcpPipe
from aiordma.streams.connector import connect
from aiordma.streams.listener import listen
from aiordma.streams.stream import RdmaStream
from aiordma.testing.memory import MemoryPipe, memory_pipe_pair
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Pair = tuple[RdmaStream, RdmaStream]

ONE, OTHER = ("127.0.0.1", 1111), ("127.0.0.1", 2222)


def on_memory(ring_bytes: int = 65536, *, spin: bool = False) -> Pair:
    one, other = memory_pipe_pair(ring_bytes, spin=spin)
    return over(one, other)


def over(one: MemoryPipe, other: MemoryPipe) -> Pair:
    return (
        RdmaStream(one, local_address=ONE, remote_address=OTHER),
        RdmaStream(other, local_address=OTHER, remote_address=ONE),
    )


def tcp_sockets() -> tuple[socket.socket, socket.socket]:
    """Two ends of a loopback connection, non-blocking."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    one.setblocking(False)
    other.setblocking(False)
    return one, other


def on_tcp(kind: type[TcpPipe] = TcpPipe) -> Pair:
    one, other = tcp_sockets()
    return (
        RdmaStream(kind(one), local_address=one.getsockname(), remote_address=other.getsockname()),
        RdmaStream(kind(other), local_address=other.getsockname(), remote_address=one.getsockname()),
    )


@functools.cache
def interpreted_tcp() -> type[TcpPipe]:
    """The pipe as it runs where nothing compiled fits: from its source."""
    source = Path(pipes.__file__).with_name("tcp.py")
    spec = importlib.util.spec_from_file_location("aiordma.pipes.interpreted_tcp", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its TcpStatistics looks there
    spec.loader.exec_module(module)
    kind: type[TcpPipe] = module.TcpPipe
    assert hasattr(kind.try_send, "__code__")
    return kind


async def memory_pair() -> Pair:
    return on_memory()


async def tiny_memory_pair() -> Pair:
    """Rings of an odd size, so small that nearly every operation is split, wraps and waits."""
    return on_memory(999)


async def spinning_memory_pair() -> Pair:
    return on_memory(4096, spin=True)


async def tcp_pair() -> Pair:
    return on_tcp()


async def interpreted_tcp_pair() -> Pair:
    return on_tcp(interpreted_tcp())


async def negotiated_pair(**options: Any) -> Pair:
    """Both ends of a connection made with listen() and connect() over loopback."""
    client_options = {key: value for key, value in options.items() if key != "server_ssl"}
    options["ssl"] = options.pop("server_ssl", None)
    async with await listen("127.0.0.1", **options) as listener:
        accepted: list[RdmaStream] = []

        async def accept() -> None:
            accepted.append(await listener.accept())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(accept)
            one = await connect("127.0.0.1", listener.port, **client_options)
    return one, accepted[0]


async def rdma_pair() -> Pair:
    """The real thing, on the software device, with the smallest rings."""
    return await negotiated_pair(config=Config(device=DEVICE, ring_bytes=16384), mode="rdma")


async def carried_pair() -> Pair:
    """Begun on RDMA, and gone on over TCP before the first byte."""
    one, other = await rdma_pair()
    assert one._pipe.leave(Code.SWITCHED)  # type: ignore[attr-defined]
    while "rdma" in (one.path, other.path):
        await anyio.lowlevel.checkpoint()
    return one, other


async def leaving_pair() -> Pair:
    """The link breaks before the first byte, and only one end knows."""
    one, other = await rdma_pair()
    # A copy: one of an earlier pair, which nobody uses any more, leaves the set as it breaks.
    for group in list((await engines.current()).all_groups):
        if group.key[1] == "client":
            group.link.queue_pair.break_link(LinkError("broken by the test"))
    return one, other


@functools.cache
def tls_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A client's and a server's that trust each other."""
    authority = trustme.CA()
    client = ssl.create_default_context()
    authority.configure_trust(client)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    return client, server


async def tls_pair() -> Pair:
    """TLS over TCP."""
    client, server = tls_contexts()
    return await negotiated_pair(ssl=client, server_ssl=server, config=Config(server_first_wait_ms=0))


MAKERS: dict[str, Callable[[], Awaitable[Pair]]] = {
    "memory": memory_pair,
    "tiny memory": tiny_memory_pair,
    "spinning memory": spinning_memory_pair,
    "tcp": tcp_pair,
    "tcp, interpreted": interpreted_tcp_pair,
    "rdma": rdma_pair,
    "tls": tls_pair,
    "carried": carried_pair,
    "leaving": leaving_pair,
}
