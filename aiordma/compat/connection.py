"""`create_connection`, `create_server`, `open_connection`, `start_server`: asyncio's functions, over RDMA.

Each has the signature of the asyncio function of its name, with the running loop implied, and two settings
more: `config` and `mode`. A connection is negotiated on TCP; it then runs on a ring, or stays on the event
loop's own TCP transport. `get_extra_info()` of transports and writers tells which:

* ``"aiordma.path"``: ``"rdma"`` or ``"tcp"``
* ``"aiordma.fallback_reason"``: why it is TCP (`aiordma.FallbackReason`), None on RDMA
* ``"aiordma.stream"``: statistics and credit of the stream (`aiordma.StreamInfo`); None on TCP
* ``"peername"``, ``"sockname"``, ``"socket"``: of the TCP connection, on both paths

With TLS, "ssl_object", "peercert" and "cipher" are there as asyncio has them.

What TCP alone can do stays on TCP, with the reason given: a socket or a local port of the caller's own, and
`ssl` (the TLS of the event loop), unless `rdma_outside_tls=True` says that payload may leave TLS. Then
everything about RDMA is negotiated inside TLS, and the payload goes by RDMA, unencrypted, when the other end
allows it as well; else it stays inside TLS, over TCP.
"""

from __future__ import annotations

import asyncio
import asyncio.trsock
import socket
from typing import TYPE_CHECKING, Any

from ..config import Config
from ..errors import Code, FallbackReason, NegotiationError
from ..negotiation import driver as negotiate
from ..negotiation import peer_cache as peers
from .fallback import Introduction, tcp_info, with_info
from .server import RdmaServer, bind_sockets
from .streams import (
    AioRdmaStreamWriter,
    RingStreamReader,
    RingStreamReaderProtocol,
    TcpStreamReaderProtocol,
    ring_streams,
)
from .tls import TLS_OPTIONS, TlsTransport, take_tls, tls_info
from .transport import RingTransport

if TYPE_CHECKING:
    import ssl as ssl_module
    from collections.abc import Callable, Iterable

    from ..config import Mode
    from ..negotiation.driver import Outcome
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
    return name in _ANY_PATH or name in TLS_OPTIONS or (name == "local_addr" and not value[1])


def _plain_reason(
    mode: Mode, options: dict[str, Any], rdma_outside_tls: bool = False
) -> FallbackReason | None:
    """Why this connection is on TCP before anybody is asked; None: negotiate.

    :raises NegotiationError: the mode is "rdma", which plain TCP would break
    """
    if options.get("ssl") and not rdma_outside_tls:
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
    info: dict[str, Any] = {}
    if outcome.pipe is None:
        info = tcp_info(outcome.fallback)
    if outcome.pipe is not None or outcome.tls is not None:
        info["peername"] = outcome.remote_address
        info["sockname"] = outcome.local_address
        info["socket"] = asyncio.trsock.TransportSocket(outcome.sock)
    if outcome.tls is not None:
        info |= tls_info(outcome.tls)
    return info


def _on_own_transport(
    loop: asyncio.AbstractEventLoop,
    outcome: Outcome,
    protocol: asyncio.BaseProtocol,
    info: dict[str, Any],
    **options: Any,
) -> RingTransport:
    if outcome.pipe is not None:
        return RingTransport(loop, outcome.pipe, protocol, extra=info, **options)
    return TlsTransport(loop, outcome, protocol, extra=info, **options)


def _abort(outcome: Outcome) -> None:
    if outcome.pipe is not None:
        outcome.pipe.abort()
    else:
        outcome.sock.close()


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
    rdma_outside_tls: bool = False,
    **options: Any,
) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
    """Connect and return (transport, protocol). See asyncio's `loop.create_connection()`.

    `rdma_outside_tls`: with `ssl`, payload may go by RDMA, unencrypted, after a negotiation inside TLS.

    :raises OSError: the connection cannot be made
    :raises aiordma.errors.NegotiationError: `mode` is "rdma" and RDMA is not to be had (also an `OSError`)
    """
    options.update(ssl=ssl, sock=sock)
    outcome, info = await _negotiate(host, port, config, mode, options, rdma_outside_tls)
    if outcome is not None and (outcome.pipe is not None or outcome.tls is not None):
        try:
            protocol = protocol_factory()
        except BaseException:
            _abort(outcome)
            raise
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        transport = _on_own_transport(waiter.get_loop(), outcome, protocol, info, waiter=waiter)
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
    rdma_outside_tls: bool = False,
    **options: Any,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect and return (reader, writer). See `asyncio.open_connection()`; errors as `create_connection`."""
    options.update(ssl=ssl, sock=sock)
    outcome, info = await _negotiate(host, port, config, mode, options, rdma_outside_tls)
    if outcome is not None and outcome.pipe is not None:
        return ring_streams(outcome.pipe, limit, info)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    if outcome is not None and outcome.tls is not None:
        own = _on_own_transport(loop, outcome, protocol, info, at_once=True)
        return reader, AioRdmaStreamWriter(own, protocol, reader, loop, {})
    transport = await _tcp_connection(lambda: protocol, host, port, outcome, options)
    with_info(transport, info)
    return reader, AioRdmaStreamWriter(transport, protocol, reader, loop, info)


async def _negotiate(
    host: str | None,
    port: int | None,
    config: Config | None,
    mode: Mode | None,
    options: dict[str, Any],
    rdma_outside_tls: bool,
) -> tuple[Outcome | None, dict[str, Any]]:
    """Connect and negotiate, unless this connection is to be plain TCP (None); and its extra info."""
    config, mode = _settings(config, mode)
    reason = _plain_reason(mode, options, rdma_outside_tls)
    if reason is not None or host is None or port is None:
        return None, tcp_info(reason)
    name = host
    if family := options.get("family"):
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
        host = str(found[0][4][0])
    local_host = options["local_addr"][0] if options.get("local_addr") else None
    tls = take_tls(options, name, server_side=False)
    outcome = await negotiate.client(host, port, config=config, mode=mode, local_host=local_host, tls=tls)
    peers.announce("server", f"{host}:{port}", outcome.path, outcome.fallback)
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
    rdma_outside_tls: bool = False,
    **options: Any,
) -> asyncio.AbstractServer:
    """Listen; every connection, RDMA or TCP, gets a protocol of its own.

    See asyncio's `loop.create_server()`. Clients that know nothing of aiordma are served on the same port.
    `rdma_outside_tls`: as for :func:`create_connection`.

    :raises OSError: the address cannot be bound
    :raises aiordma.errors.NegotiationError: `mode` is "rdma" and RDMA is not to be had, or `ssl` asks for TCP
    """

    def make(info: dict[str, Any]) -> asyncio.BaseProtocol:
        return protocol_factory()

    return await _serve(make, make, host, port, config, mode, options, rdma_outside_tls)


async def start_server(
    client_connected_cb: ClientConnected,
    host: Hosts = None,
    port: int | str | None = None,
    *,
    limit: int = _LIMIT,
    config: Config | None = None,
    mode: Mode | None = None,
    rdma_outside_tls: bool = False,
    **options: Any,
) -> asyncio.AbstractServer:
    """Listen; every connection, RDMA or TCP, calls `client_connected_cb(reader, writer)`.

    See `asyncio.start_server()`; errors as `create_server`. A coroutine handler that fails has its error
    reported and its connection closed.
    """
    loop = asyncio.get_running_loop()

    def on_ring(info: dict[str, Any]) -> asyncio.BaseProtocol:
        return RingStreamReaderProtocol(RingStreamReader(limit, loop), client_connected_cb, loop)

    def on_tcp(info: dict[str, Any]) -> asyncio.BaseProtocol:
        reader = asyncio.StreamReader(limit=limit, loop=loop)
        return TcpStreamReaderProtocol(reader, client_connected_cb, loop, info)

    return await _serve(on_ring, on_tcp, host, port, config, mode, options, rdma_outside_tls)


async def _serve(
    on_ring: Callable[[dict[str, Any]], asyncio.BaseProtocol],
    on_tcp: Callable[[dict[str, Any]], asyncio.BaseProtocol],
    host: Hosts,
    port: int | str | None,
    config: Config | None,
    mode: Mode | None,
    options: dict[str, Any],
    rdma_outside_tls: bool,
) -> asyncio.AbstractServer:
    loop: Any = asyncio.get_running_loop()
    config, mode = _settings(config, mode)
    if options.get("ssl") and (not rdma_outside_tls or mode == "tcp"):
        reason = _plain_reason(mode, {"ssl": True}, rdma_outside_tls)
        assert reason is not None
        plain, code = tcp_info(reason), reason.code

        def introduce() -> Introduction:
            # A client that allows payload outside TLS proposes that, inside TLS.
            return Introduction(on_tcp(plain), plain, late_proposal=code)

        server: asyncio.AbstractServer = await loop.create_server(introduce, host, port, **options)
        return server
    tls = take_tls(options, None, server_side=True)
    if mode == "rdma":
        await negotiate.find_engine(config)
    engine = await negotiate.warm_up(config, mode)
    # Of processes that share a port, a connection may meet another than the one that gave the ticket.
    if options.get("reuse_port") or options.get("sock") is not None or tls is not None:
        engine = None

    async def connect(server: RdmaServer, connection: socket.socket) -> None:
        outcome = await negotiate.server(
            connection, config=config, mode=mode, service=server.service, tls=tls
        )
        peers.announce("client", outcome.remote_address[0], outcome.path, outcome.fallback)
        info = _info(outcome)
        if outcome.pipe is not None or outcome.tls is not None:
            try:
                protocol = on_ring(info) if outcome.pipe is not None else on_tcp(info)
                _on_own_transport(loop, outcome, protocol, info, server=server)
            except BaseException:
                _abort(outcome)
                raise
            return
        try:
            late_proposal = Code.PLAIN_TCP_PEER if outcome.silent else None
            introduction = Introduction(on_tcp(info), info, server.adopt, late_proposal)
            await loop.connect_accepted_socket(lambda: introduction, outcome.sock)
        except BaseException:
            outcome.sock.close()
            raise

    return await _listen(connect, engine, host, port, **options)


async def _listen(
    connect: Callable[[RdmaServer, socket.socket], Any],
    engine: negotiate.Engine | None,
    host: Hosts,
    port: int | str | None,
    *,
    family: int = socket.AF_UNSPEC,
    flags: int = socket.AI_PASSIVE,
    sock: socket.socket | None = None,
    backlog: int = 100,
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
    server = RdmaServer(asyncio.get_running_loop(), sockets, connect, backlog, engine)
    if start_serving:
        await server.start_serving()
    return server
