"""What every function that connects owes its program, whatever it makes of the connection."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.abc import SocketAttribute
from anyio.streams.tls import TLSListener, TLSStream

import aiordma
from aiordma import memory, rpc
from aiordma.channels import channel as channels
from aiordma.config import Config
from aiordma.negotiation import peer_cache
from tests.loops import LOOPS
from tests.streams.pairs import tls_contexts

from .serving import LOCAL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator

    from .fake import Engine

    #: Connects, and returns the path and how the connection is closed.
    Connect = Callable[[str, int, Config], Awaitable[tuple[str, Callable[[], Awaitable[object]]]]]

pytestmark = pytest.mark.anyio


@functools.cache
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    return tls_contexts()


# ---- surfaces


async def _stream(host: str, port: int, config: Config) -> Any:
    stream = await aiordma.connect(host, port, config=config)
    return stream.path, stream.aclose


async def _tls(host: str, port: int, config: Config) -> Any:
    client, _ = contexts()
    stream = await aiordma.connect(
        host, port, config=config, ssl=client, server_hostname=LOCAL, rdma_outside_tls=True
    )
    return stream.path, stream.aclose


async def _transport(host: str, port: int, config: Config) -> Any:
    transport, _ = await aiordma.create_connection(asyncio.Protocol, host, port, config=config)

    async def close() -> None:
        transport.abort()
        await asyncio.sleep(0)

    return transport.get_extra_info("aiordma.path", "tcp"), close


async def _writer(host: str, port: int, config: Config) -> Any:
    _, writer = await aiordma.open_connection(host, port, config=config)

    async def close() -> None:
        writer.close()
        await writer.wait_closed()

    return writer.get_extra_info("aiordma.path", "tcp"), close


async def _channels(host: str, port: int, config: Config) -> Any:
    connected = await channels.connect(host, port, config=config)

    async def close() -> None:
        connected.abort()
        await connected.aclose()

    return connected.path, close


async def _calls(host: str, port: int, config: Config) -> Any:
    opened = contextlib.AsyncExitStack()
    client = await opened.enter_async_context(rpc.connect(host, port, config=config))
    return client.path, opened.aclose


async def _pool(host: str, port: int, config: Config) -> Any:
    opened = contextlib.AsyncExitStack()
    pool = await opened.enter_async_context(rpc.connect_pool([(host, port)], config=config))
    return pool.pick().path, opened.aclose


async def _memory(host: str, port: int, config: Config) -> Any:
    peer = await memory.connect(host, port, config=config)
    return peer.path, peer.aclose


async def _datagrams(host: str, port: int, config: Config) -> Any:
    connection = await aiordma.connect_datagram(host, port, config=config)
    return connection.path, connection.aclose


async def _datagram_transport(host: str, port: int, config: Config) -> Any:
    transport, _ = await aiordma.create_datagram_connection(
        asyncio.DatagramProtocol, host, port, config=config
    )

    async def close() -> None:
        transport.abort()
        await asyncio.sleep(0)

    return transport.get_extra_info("aiordma.path"), close


async def _trio(host: str, port: int, config: Config) -> Any:
    import trio

    stream: Any = await trio.open_tcp_stream(host, port)
    path = stream.socket.stream.path if hasattr(stream.socket, "stream") else "tcp"
    return path, stream.aclose


CONNECTORS: dict[str, Connect] = {
    "stream": _stream,
    "tls": _tls,
    "transport": _transport,
    "writer": _writer,
    "channels": _channels,
    "calls": _calls,
    "pool": _pool,
    "memory": _memory,
    "datagrams": _datagrams,
    "datagram transport": _datagram_transport,
    "trio": _trio,
}
#: Surfaces of one kind of loop.
_OF_ASYNCIO, _OF_TRIO = {"transport", "writer", "datagram transport"}, {"trio"}
#: Those to which a plain server means nothing: what they send has the form of their own.
_NOT_PLAIN = {"channels", "calls", "pool", "memory", "datagrams", "datagram transport"}


def cases(surfaces: Iterable[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("surface", "anyio_backend"),
        [
            pytest.param(name, LOOPS[loop], id=f"{name}-{loop}")
            for name in surfaces
            for loop in LOOPS
            if name not in (_OF_ASYNCIO if loop == "trio" else _OF_TRIO)
        ],
    )


@pytest.fixture
def installed(surface: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """trio's own functions are served by aiordma while a test lasts."""
    if surface == "trio":
        monkeypatch.setenv("AIORDMA_HEAD_START_MS", "1")
        monkeypatch.setenv("AIORDMA_NEGOTIATE_TIMEOUT_MS", "600000")
        aiordma.install()
    yield
    aiordma.uninstall()


@pytest.fixture
def config() -> Config:
    return Config(head_start_ms=1, negotiate_timeout_ms=600_000)


# ---- a plain server


@contextlib.asynccontextmanager
async def own_server(surface: str) -> AsyncIterator[int]:
    """The port of a server of the surface itself, where a plain one means nothing to it."""
    if surface == "channels":
        async with await channels.listen(LOCAL, mode="tcp") as listener:
            yield listener.port
    elif surface in ("calls", "pool"):
        async with rpc.serve((), LOCAL, mode="tcp") as listening:
            yield listening.port
    elif surface == "memory":
        async with memory.serve(LOCAL, mode="tcp") as owner:
            yield owner.port
    elif surface in ("datagrams", "datagram transport"):
        async with await aiordma.listen_datagram(LOCAL, mode="tcp") as datagrams:
            yield datagrams.port
    else:
        async with silent(surface) as port:
            yield port


@contextlib.asynccontextmanager
async def silent(surface: str) -> AsyncIterator[int]:
    """The port of a plain server that waits for its client to speak a language that it knows."""
    if surface != "tls":
        with socket.create_server((LOCAL, 0)) as sock:  # the kernel takes what comes
            yield sock.getsockname()[1]
        return
    bound = await anyio.create_tcp_listener(local_host=LOCAL)
    listener = TLSListener(bound, contexts()[1], standard_compatible=False)

    async def wait(stream: TLSStream) -> None:
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            async with stream:
                await stream.receive()

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, wait)
        yield bound.extra(SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


@cases(sorted(CONNECTORS.keys() - _NOT_PLAIN))
@pytest.mark.usefixtures("installed")
async def test_a_server_that_negotiated_is_replaced_by_a_silent_one(
    surface: str, engine: Engine, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is taken for a busy one some times, each time no longer than an unknown peer."""
    monkeypatch.setattr(peer_cache, "_BELIEVED_S", 0.02)
    async with silent(surface) as port:
        peer_cache.remember_clc((LOCAL, port, surface == "tls"))
        for _ in range(peer_cache._SILENCES + 2):
            with anyio.fail_after(10):
                path, close = await CONNECTORS[surface](LOCAL, port, config)
                assert path == "tcp"
                await close()
    # Under `aiordma run`, a server of this host that announces itself no more is not asked at all.
    assert engine.proposals == (0 if surface == "trio" else peer_cache._SILENCES)


@cases(CONNECTORS)
@pytest.mark.usefixtures("installed")
async def test_every_address_of_a_name_is_tried(
    surface: str, engine: Engine, config: Config, anyio_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens at the first one. What a program has put in the place of the look-up gets text."""
    known = socket.getaddrinfo

    def look_up(host: Any, port: Any, *arguments: Any, **named: Any) -> Any:
        assert host != b"two.example"
        if host != "two.example":
            return known(host, port, *arguments, **named)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in ("127.0.0.9", LOCAL)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    if surface == "trio":
        import trio

        async def looked_up(*arguments: Any, **named: Any) -> Any:
            return look_up(*arguments, **named)

        monkeypatch.setattr(trio.socket, "getaddrinfo", looked_up)
    elif anyio_backend == LOOPS["asyncio+uvloop"]:  # which looks up by itself
        monkeypatch.setattr("aiordma.negotiation.tcp_connect.getaddrinfo", _by_the_socket_module)
    async with own_server(surface) as port:
        with anyio.fail_after(10):
            path, close = await CONNECTORS[surface]("two.example", port, config)
            assert path == "tcp"
            await close()


async def _by_the_socket_module(host: Any, port: Any, **named: Any) -> Any:
    return socket.getaddrinfo(host, port, **named)
