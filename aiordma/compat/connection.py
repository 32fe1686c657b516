"""`create_connection`, `create_server`, `open_connection`, `start_server`: asyncio's functions, over RDMA.

Each has the signature of the asyncio function of its name, with the running loop implied, and two settings
more: `config` and `mode`. A connection is negotiated on TCP; it then runs on a ring, or stays on the event
loop's own TCP transport. `get_extra_info()` of transports and writers tells which:

* ``"aiordma.path"``: ``"rdma"`` or ``"tcp"``
* ``"aiordma.fallback_reason"``: why it is TCP (`aiordma.FallbackReason`), None on RDMA
* ``"aiordma.stream"``: the ring pipe, for its statistics(); None on TCP
* ``"peername"``, ``"sockname"``, ``"socket"``: of the TCP connection, on both paths

What TCP alone can do stays on TCP, with the reason given: `ssl` (the TLS of the event loop), and a socket or
a local port of the caller's own.
"""

from __future__ import annotations

import asyncio
import asyncio.trsock
import socket
from typing import TYPE_CHECKING, Any

from .. import negotiate, peers
from ..config import Config
from ..errors import Code, FallbackReason, NegotiationError
from .fallback import Introduction, tcp_info, with_info
from .server import RdmaServer, bind_sockets
from .streams import (
    AioRdmaStreamWriter,
    RingStreamReader,
    RingStreamReaderProtocol,
    TcpStreamReaderProtocol,
    ring_streams,
)
from .transport import RingTransport

if TYPE_CHECKING:
    import ssl as ssl_module
    from collections.abc import Callable, Iterable

    from ..config import Mode
    from ..negotiate import Outcome
    from .streams import ClientConnected

    Factory = Callable[[], asyncio.BaseProtocol]
    Hosts = str | Iterable[str | None] | None

_LIMIT = 64 * 1024

#: options of asyncio's create_connection() that are no reason to stay on TCP: how addresses are tried
_ANY_PATH = {"all_errors", "family", "flags", "happy_eyeballs_delay", "interleave", "proto"}


def _settings(config: Config | None, mode: Mode | None) -> tuple[Config, Mode]:
    config = Config.from_env() if config is None else config
    return config, config.mode if mode is None else mode


def _on_any_path(name: str, value: Any) -> bool:
    return name in _ANY_PATH or (name == "local_addr" and not value[1])


def _plain_reason(mode: Mode, options: dict[str, Any]) -> FallbackReason | None:
    """Why this connection is plain TCP before anybody is asked; None: negotiate.

    :raises NegotiationError: the mode is "rdma", which plain TCP would break
    """
    if options.get("ssl"):
        reason = FallbackReason.of_local(Code.TLS_PAYLOAD_POLICY, "ssl= is TLS over TCP")
    elif mode == "tcp":
        reason = FallbackReason.of_local(Code.DISABLED)
    elif given := sorted(name for name, value in options.items() if value and not _on_any_path(name, value)):
        reason = FallbackReason.of_local(Code.CONFIGURATION, f"{', '.join(given)} given, for TCP only")
    else:
        return None
    if mode == "rdma":
        raise NegotiationError(reason.code, f"{reason.text}; mode is 'rdma'")
    return reason


def _info(outcome: Outcome) -> dict[str, Any]:
    if outcome.pipe is None:
        return tcp_info(outcome.fallback)
    return {
        "peername": outcome.remote_address,
        "sockname": outcome.local_address,
        "socket": asyncio.trsock.TransportSocket(outcome.sock),
    }


# ---- clients ------------------------------------------------------------------------------------------


async def create_connection(
    protocol_factory: Factory,
    host: str | None = None,
    port: int | None = None,
    *,
    ssl: ssl_module.SSLContext | bool | None = None,
    sock: socket.socket | None = None,
    config: Config | None = None,
    mode: Mode | None = None,
    **options: Any,
) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
    """Connect and return (transport, protocol). See asyncio's `loop.create_connection()`.

    :raises OSError: the connection cannot be made
    :raises aiordma.errors.NegotiationError: `mode` is "rdma" and RDMA is not to be had (also an `OSError`)
    """
    options.update(ssl=ssl, sock=sock)
    outcome, info = await _negotiate(host, port, config, mode, options)
    if outcome is not None and outcome.pipe is not None:
        try:
            protocol = protocol_factory()
        except BaseException:
            outcome.pipe.abort()
            raise
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        transport = RingTransport(waiter.get_loop(), outcome.pipe, protocol, extra=info, waiter=waiter)
        try:
            await waiter
        except BaseException:
            transport.abort()
            raise
        return transport, protocol
    introduction: Introduction | None = None

    def introduce() -> Introduction:
        nonlocal introduction
        introduction = Introduction(protocol_factory(), info)
        return introduction

    await _tcp_connection(introduce, host, port, outcome, options)
    assert introduction is not None
    assert introduction.transport is not None
    return introduction.transport, introduction.protocol


async def open_connection(
    host: str | None = None,
    port: int | None = None,
    *,
    limit: int = _LIMIT,
    ssl: ssl_module.SSLContext | bool | None = None,
    sock: socket.socket | None = None,
    config: Config | None = None,
    mode: Mode | None = None,
    **options: Any,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect and return (reader, writer). See `asyncio.open_connection()`; errors as `create_connection`."""
    options.update(ssl=ssl, sock=sock)
    outcome, info = await _negotiate(host, port, config, mode, options)
    if outcome is not None and outcome.pipe is not None:
        return await ring_streams(outcome.pipe, limit, info)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport = await _tcp_connection(lambda: protocol, host, port, outcome, options)
    with_info(transport, info)
    return reader, AioRdmaStreamWriter(transport, protocol, reader, loop, info)


async def _negotiate(
    host: str | None, port: int | None, config: Config | None, mode: Mode | None, options: dict[str, Any]
) -> tuple[Outcome | None, dict[str, Any]]:
    """Connect and negotiate, unless this connection is to be plain TCP (None); and its extra info."""
    config, mode = _settings(config, mode)
    reason = _plain_reason(mode, options)
    if reason is not None or host is None or port is None:
        return None, tcp_info(reason)
    if family := options.get("family"):
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
        host = str(found[0][4][0])
    local_host = options["local_addr"][0] if options.get("local_addr") else None
    outcome = await negotiate.client(host, port, config=config, mode=mode, local_host=local_host)
    peers.announce("server", f"{host}:{port}", "RDMA" if outcome.pipe else "TCP", outcome.fallback)
    return outcome, _info(outcome)


async def _tcp_connection(
    factory: Factory, host: str | None, port: int | None, outcome: Outcome | None, options: dict[str, Any]
) -> asyncio.Transport:
    """On the loop's own transport: a new connection, or the one that the negotiation has left on TCP."""
    loop: Any = asyncio.get_running_loop()
    transport: asyncio.Transport
    if outcome is None:
        transport, _ = await loop.create_connection(factory, host, port, **options)
        return transport
    try:
        transport, _ = await loop.create_connection(factory, sock=outcome.sock)
    except BaseException:
        outcome.sock.close()
        raise
    return transport


# ---- servers ------------------------------------------------------------------------------------------


async def create_server(
    protocol_factory: Factory,
    host: Hosts = None,
    port: int | str | None = None,
    *,
    config: Config | None = None,
    mode: Mode | None = None,
    **options: Any,
) -> asyncio.AbstractServer:
    """Listen; every connection, RDMA or TCP, gets a protocol of its own.

    See asyncio's `loop.create_server()`. Clients that know nothing of aiordma are served on the same port.

    :raises OSError: the address cannot be bound
    :raises aiordma.errors.NegotiationError: `mode` is "rdma" and RDMA is not to be had, or `ssl` asks for TCP
    """

    def on_ring(server: RdmaServer, outcome: Outcome) -> None:
        assert outcome.pipe is not None
        loop = server.get_loop()
        RingTransport(loop, outcome.pipe, protocol_factory(), extra=_info(outcome), server=server)

    def on_tcp(info: dict[str, Any]) -> asyncio.BaseProtocol:
        return protocol_factory()

    return await _serve(on_ring, on_tcp, host, port, config, mode, options)


async def start_server(
    client_connected_cb: ClientConnected,
    host: Hosts = None,
    port: int | str | None = None,
    *,
    limit: int = _LIMIT,
    config: Config | None = None,
    mode: Mode | None = None,
    **options: Any,
) -> asyncio.AbstractServer:
    """Listen; every connection, RDMA or TCP, calls `client_connected_cb(reader, writer)`.

    See `asyncio.start_server()`; errors as `create_server`. A coroutine handler that fails has its error
    reported and its connection closed.
    """
    loop = asyncio.get_running_loop()

    def on_ring(server: RdmaServer, outcome: Outcome) -> None:
        assert outcome.pipe is not None
        protocol = RingStreamReaderProtocol(RingStreamReader(limit, loop), client_connected_cb, loop)
        RingTransport(loop, outcome.pipe, protocol, extra=_info(outcome), server=server)

    def on_tcp(info: dict[str, Any]) -> asyncio.BaseProtocol:
        reader = asyncio.StreamReader(limit=limit, loop=loop)
        return TcpStreamReaderProtocol(reader, client_connected_cb, loop, info)

    return await _serve(on_ring, on_tcp, host, port, config, mode, options)


async def _serve(
    on_ring: Callable[[RdmaServer, Outcome], None],
    on_tcp: Callable[[dict[str, Any]], asyncio.BaseProtocol],
    host: Hosts,
    port: int | str | None,
    config: Config | None,
    mode: Mode | None,
    options: dict[str, Any],
) -> asyncio.AbstractServer:
    loop: Any = asyncio.get_running_loop()
    config, mode = _settings(config, mode)
    if options.get("ssl"):
        plain = tcp_info(_plain_reason(mode, {"ssl": True}))
        server: asyncio.AbstractServer
        server = await loop.create_server(lambda: Introduction(on_tcp(plain), plain), host, port, **options)
        return server
    if mode != "tcp":
        # Now, not while the first client waits for its answer: it would give up and take TCP.
        try:
            await negotiate.find_engine(config)
        except NegotiationError:
            if mode == "rdma":
                raise

    await negotiate.warm_up(config, mode)

    async def connect(server: RdmaServer, connection: socket.socket) -> None:
        outcome = await negotiate.server(connection, config=config, mode=mode)
        path = "TCP" if outcome.pipe is None else "RDMA"
        peers.announce("client", outcome.remote_address[0], path, outcome.fallback)
        if outcome.pipe is not None:
            try:
                on_ring(server, outcome)
            except BaseException:
                outcome.pipe.abort()
                raise
            return
        try:
            info = _info(outcome)
            introduction = Introduction(on_tcp(info), info, server.adopt, outcome.silent)
            await loop.connect_accepted_socket(lambda: introduction, outcome.sock)
        except BaseException:
            outcome.sock.close()
            raise

    return await _listen(connect, host, port, **options)


async def _listen(
    connect: Callable[[RdmaServer, socket.socket], Any],
    host: Hosts,
    port: int | str | None,
    *,
    family: int = socket.AF_UNSPEC,
    flags: int = socket.AI_PASSIVE,
    sock: socket.socket | None = None,
    backlog: int = 100,
    ssl: None = None,
    reuse_address: bool | None = None,
    reuse_port: bool | None = None,
    start_serving: bool = True,
) -> RdmaServer:
    if sock is None:
        if host is None and port is None:
            raise ValueError("Neither host/port nor sock were specified")
        sockets = await bind_sockets(
            host, port, family=family, flags=flags, reuse_address=reuse_address, reuse_port=reuse_port
        )
    elif host is not None or port is not None:
        raise ValueError("host/port and sock can not be specified at the same time")
    elif sock.type != socket.SOCK_STREAM:
        raise ValueError(f"A Stream Socket was expected, got {sock!r}")
    else:
        sock.setblocking(False)
        sockets = [sock]
    server = RdmaServer(asyncio.get_running_loop(), sockets, connect, backlog)
    if start_serving:
        await server.start_serving()
    return server
