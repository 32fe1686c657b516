"""`create_connection`, `create_server`, `open_connection`, `start_server`: asyncio's functions, over RDMA.

Each has the signature of the asyncio function of the same name, always uses the running loop, and takes two
more settings: `config` and `mode`. A connection is negotiated on TCP; it then runs on a ring, or stays on the
event loop's own TCP transport. `get_extra_info()` of transports and writers shows the result:

* ``"aiordma.path"``: ``"rdma"`` or ``"tcp"``
* ``"aiordma.fallback_reason"``: why it is TCP (`aiordma.FallbackReason`), None on RDMA
* ``"aiordma.stream"``: statistics and credit of the stream (`aiordma.StreamInfo`); None on TCP
* ``"peername"``, ``"sockname"``, ``"socket"``: of the TCP connection, on both paths

With TLS, "ssl_object", "peercert" and "cipher" are available as in asyncio.

Options that only TCP supports keep a connection on TCP, and the fallback reason names them: the caller's own
socket or local port, and `ssl` (the TLS of the event loop). With `rdma_outside_tls=True`, payload may leave
TLS: RDMA is negotiated inside TLS, and the payload travels over RDMA, unencrypted, if the peer allows it as
well; otherwise it stays inside TLS, over TCP.
"""

from __future__ import annotations

import asyncio
import asyncio.trsock
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..config import Config
from ..errors import Code, FallbackReason, NegotiationError
from ..negotiation import peer_cache
from ..negotiation.connect import connect_and_negotiate
from ..negotiation.engine import find_engine, warm_up
from ..negotiation.options import ConnectOptions, PathOptions
from ..negotiation.server import negotiate_accepted
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
    from ..negotiation.engine import Engine
    from ..negotiation.result import NegotiationResult
    from .streams import ClientConnected

    Factory = Callable[[], asyncio.BaseProtocol]
    InfoFactory = Callable[[dict[str, Any]], asyncio.BaseProtocol]
    Hosts = str | Iterable[str | None] | None

_LIMIT = 64 * 1024

#: options of asyncio's create_connection() that do not force TCP: they only control which addresses are tried
_ANY_PATH = {"all_errors", "family", "flags", "happy_eyeballs_delay", "interleave", "proto"}


def _on_any_path(name: str, value: Any) -> bool:
    return name in _ANY_PATH or name in TLS_OPTIONS or (name == "local_addr" and not value[1])


@dataclass(frozen=True, slots=True)
class _Choice:
    """The caller's settings for the path, beside asyncio's own options."""

    config: Config
    mode: Mode
    rdma_outside_tls: bool

    @classmethod
    def of(cls, config: Config | None, mode: Mode | None, rdma_outside_tls: bool) -> _Choice:
        config = Config.from_env() if config is None else config
        return cls(config, config.mode if mode is None else mode, rdma_outside_tls)

    def plain_reason(self, options: dict[str, Any]) -> FallbackReason | None:
        """The reason to use TCP without a negotiation; None: negotiate.

        :raises NegotiationError: the mode is "rdma", which forbids plain TCP
        """
        if options.get("ssl") and not self.rdma_outside_tls:
            reason = FallbackReason.of_local(Code.TLS_PAYLOAD_POLICY, "ssl= is TLS over TCP")
        elif self.mode == "tcp":
            reason = FallbackReason.of_local(Code.DISABLED)
        elif given := sorted(
            name for name, value in options.items() if value and not _on_any_path(name, value)
        ):
            reason = FallbackReason.of_local(Code.CONFIGURATION, f"{', '.join(given)} given, for TCP only")
        else:
            return None
        if self.mode == "rdma":
            raise NegotiationError(reason.code, f"{reason.text}; mode is 'rdma'")
        return reason


def _info(result: NegotiationResult) -> dict[str, Any]:
    info: dict[str, Any] = {}
    if result.pipe is None:
        info = tcp_info(result.fallback)
    if result.pipe is not None or result.tls is not None:
        info["peername"] = result.remote_address
        info["sockname"] = result.local_address
        info["socket"] = asyncio.trsock.TransportSocket(result.sock)
    if result.tls is not None:
        info |= tls_info(result.tls)
    return info


def _on_own_transport(
    loop: asyncio.AbstractEventLoop,
    result: NegotiationResult,
    protocol: asyncio.BaseProtocol,
    info: dict[str, Any],
    **options: Any,
) -> RingTransport:
    if result.pipe is not None:
        return RingTransport(loop, result.pipe, protocol, extra=info, **options)
    return TlsTransport(loop, result, protocol, extra=info, **options)


def _abort(result: NegotiationResult) -> None:
    if result.pipe is not None:
        result.pipe.abort()
    else:
        result.sock.close()


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

    `rdma_outside_tls`: with `ssl`, payload may travel over RDMA, unencrypted, after a negotiation inside TLS.

    :raises OSError: the connection cannot be made
    :raises aiordma.errors.NegotiationError: `mode` is "rdma" and RDMA is unavailable (also an `OSError`)
    """
    options.update(ssl=ssl, sock=sock)
    result, info = await _negotiate(host, port, _Choice.of(config, mode, rdma_outside_tls), options)
    if result is not None and (result.pipe is not None or result.tls is not None):
        try:
            protocol = protocol_factory()
        except BaseException:
            _abort(result)
            raise
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        transport = _on_own_transport(waiter.get_loop(), result, protocol, info, waiter=waiter)
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

    await _tcp_connection(introduce, host, port, result, options)
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
    result, info = await _negotiate(host, port, _Choice.of(config, mode, rdma_outside_tls), options)
    if result is not None and result.pipe is not None:
        return ring_streams(result.pipe, limit, info)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    if result is not None and result.tls is not None:
        own = _on_own_transport(loop, result, protocol, info, at_once=True)
        return reader, AioRdmaStreamWriter(own, protocol, reader, loop, {})
    transport = await _tcp_connection(lambda: protocol, host, port, result, options)
    with_info(transport, info)
    return reader, AioRdmaStreamWriter(transport, protocol, reader, loop, info)


async def _negotiate(
    host: str | None, port: int | None, choice: _Choice, options: dict[str, Any]
) -> tuple[NegotiationResult | None, dict[str, Any]]:
    """Connect and negotiate; returns the result (None for plain TCP) and the extra info."""
    reason = choice.plain_reason(options)
    if reason is not None or host is None or port is None:
        return None, tcp_info(reason)
    name = host
    if family := options.get("family"):
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
        host = str(found[0][4][0])
    local_host = options["local_addr"][0] if options.get("local_addr") else None
    tls = take_tls(options, name, server_side=False)
    result = await connect_and_negotiate(
        host, port, ConnectOptions(choice.config, choice.mode, tls, local_host)
    )
    peer_cache.announce("server", f"{host}:{port}", result.path, result.fallback)
    return result, _info(result)


async def _tcp_connection(
    factory: Factory,
    host: str | None,
    port: int | None,
    result: NegotiationResult | None,
    options: dict[str, Any],
) -> asyncio.Transport:
    """Use the loop's own transport, for a new connection or one that the negotiation left on TCP."""
    loop: Any = asyncio.get_running_loop()
    transport: asyncio.Transport
    if result is None:
        transport, _ = await loop.create_connection(factory, host, port, **options)
        return transport
    try:
        transport, _ = await loop.create_connection(factory, sock=result.sock)
    except BaseException:
        result.sock.close()
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

    See asyncio's `loop.create_server()`. Clients without aiordma are served on the same port.
    `rdma_outside_tls`: as for :func:`create_connection`.

    :raises OSError: the address cannot be bound
    :raises aiordma.errors.NegotiationError: `mode` is "rdma" and RDMA is unavailable, or `ssl` requires TCP
    """

    def make(info: dict[str, Any]) -> asyncio.BaseProtocol:
        return protocol_factory()

    protocols = _Protocols(make, make)
    return await _serve(protocols, host, port, _Choice.of(config, mode, rdma_outside_tls), options)


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

    See `asyncio.start_server()`; errors as `create_server`. If a coroutine handler fails, its error
    is reported and its connection closed.
    """
    loop = asyncio.get_running_loop()

    def on_ring(info: dict[str, Any]) -> asyncio.BaseProtocol:
        return RingStreamReaderProtocol(RingStreamReader(limit, loop), client_connected_cb, loop)

    def on_tcp(info: dict[str, Any]) -> asyncio.BaseProtocol:
        reader = asyncio.StreamReader(limit=limit, loop=loop)
        return TcpStreamReaderProtocol(reader, client_connected_cb, loop, info)

    protocols = _Protocols(on_ring, on_tcp)
    return await _serve(protocols, host, port, _Choice.of(config, mode, rdma_outside_tls), options)


@dataclass(frozen=True, slots=True)
class _Protocols:
    """Factories for the protocol of a connection, given its extra info."""

    on_ring: InfoFactory
    on_tcp: InfoFactory


async def _serve(
    protocols: _Protocols, host: Hosts, port: int | str | None, choice: _Choice, options: dict[str, Any]
) -> asyncio.AbstractServer:
    if options.get("ssl") and (not choice.rdma_outside_tls or choice.mode == "tcp"):
        return await _serve_tls(protocols.on_tcp, host, port, choice, options)
    path = PathOptions(choice.config, choice.mode, take_tls(options, None, server_side=True))
    if path.mode == "rdma":
        await find_engine(path.config)
    engine = await warm_up(path)
    # If several processes share a port, a process other than the one that granted the ring may accept.
    if options.get("reuse_port") or options.get("sock") is not None or path.tls is not None:
        engine = None

    async def begin(server: RdmaServer, connection: socket.socket) -> None:
        result = await negotiate_accepted(connection, path, service=server.service)
        peer_cache.announce("client", result.remote_address[0], result.path, result.fallback)
        await _begin(protocols, server, result)

    return await _listen(begin, engine, host, port, **options)


async def _serve_tls(
    on_tcp: InfoFactory, host: Hosts, port: int | str | None, choice: _Choice, options: dict[str, Any]
) -> asyncio.AbstractServer:
    """Serve on the event loop's own TLS, without a negotiation."""
    reason = choice.plain_reason({"ssl": True})
    assert reason is not None
    info, code = tcp_info(reason), reason.code

    def introduce() -> Introduction:
        # A client that allows payload outside TLS sends a Proposal, inside TLS.
        return Introduction(on_tcp(info), info, late_proposal=code)

    loop: Any = asyncio.get_running_loop()
    server: asyncio.AbstractServer = await loop.create_server(introduce, host, port, **options)
    return server


async def _begin(protocols: _Protocols, server: RdmaServer, result: NegotiationResult) -> None:
    """Give an accepted connection its protocol and transport."""
    loop: Any = asyncio.get_running_loop()
    info = _info(result)
    try:
        if result.pipe is not None or result.tls is not None:
            make = protocols.on_tcp if result.pipe is None else protocols.on_ring
            _on_own_transport(loop, result, make(info), info, server=server)
            return
        late_proposal = Code.PLAIN_TCP_PEER if result.silent else None
        introduction = Introduction(protocols.on_tcp(info), info, server.adopt, late_proposal)
        await loop.connect_accepted_socket(lambda: introduction, result.sock)
    except BaseException:
        _abort(result)
        raise


async def _listen(
    begin: Callable[[RdmaServer, socket.socket], Any],
    engine: Engine | None,
    host: Hosts,
    port: int | str | None,
    *,
    backlog: int = 100,
    start_serving: bool = True,
    **options: Any,
) -> RdmaServer:
    sockets = await _sockets(host, port, **options)
    server = RdmaServer(asyncio.get_running_loop(), sockets, begin, backlog, engine)
    if start_serving:
        await server.start_serving()
    return server


async def _sockets(
    host: Hosts,
    port: int | str | None,
    *,
    sock: socket.socket | None = None,
    family: int = socket.AF_UNSPEC,
    flags: int = socket.AI_PASSIVE,
    reuse_address: bool | None = None,
    reuse_port: bool | None = None,
) -> list[socket.socket]:
    """The sockets to listen on: newly bound, or the caller's own."""
    if sock is None:
        if host is None and port is None:
            raise ValueError("Neither host/port nor sock were specified")
        return await bind_sockets(
            host, port, family=family, flags=flags, reuse_address=reuse_address, reuse_port=reuse_port
        )
    if host is not None or port is not None:
        raise ValueError("host/port and sock can not be specified at the same time")
    if sock.type != socket.SOCK_STREAM:
        raise ValueError(f"A Stream Socket was expected, got {sock!r}")
    sock.setblocking(False)
    return [sock]
