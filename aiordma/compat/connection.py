"""`create_connection`, `create_server`, `connect_accepted_socket`, `open_connection`, `start_server`.

They are asyncio's functions and methods of these names, over RDMA.

Each has the signature of the asyncio function of the same name, always uses the running loop, and takes two
more settings: `config` and `mode`. A connection is negotiated on TCP; it then runs on a ring, or stays on the
event loop's own TCP transport. `get_extra_info()` of transports and writers shows the result:

* ``"aiordma.path"``: ``"rdma"`` or ``"tcp"``
* ``"aiordma.fallback_reason"``: why it is TCP (`aiordma.FallbackReason`), None on RDMA
* ``"aiordma.stream"``: statistics and credit of the stream (`aiordma.StreamInfo`); None on TCP
* ``"peername"``, ``"sockname"``, ``"socket"``: of the TCP connection, on both paths

With TLS, "ssl_object", "peercert" and "cipher" are available as in asyncio.

Options that only TCP supports keep a connection on TCP, and the fallback reason names them: a local port,
and `ssl` (the TLS of the event loop). A connected socket that the caller brings (`sock=`) is negotiated on,
unless it has carried data before or is bound to a port of the program's choice; if the peer turns out to be
plain, a new connection with the same options and another local port takes its place. With
`rdma_outside_tls=True`, payload may leave TLS: RDMA is negotiated inside TLS, and the payload travels over
RDMA, unencrypted, if the peer allows it as well; otherwise it stays inside TLS, over TCP.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..addresses import family_of, plain_address, show
from ..errors import Code, FallbackReason, NegotiationError
from ..negotiation import peer_cache
from ..negotiation.announcement import arriving
from ..negotiation.connect import connect_and_negotiate
from ..negotiation.engine import find_engine, warm_up
from ..negotiation.options import ConnectOptions, PathOptions
from ..negotiation.server import keep_plain, negotiate_accepted
from ..negotiation.smc_option import let_ask
from ..wake.names import getaddrinfo
from .arguments import check_accepted, check_client, check_limit, check_port, check_server
from .choice import Choice, abort, info_of, on_own_transport
from .fallback import Introduction, handing_over, tcp_info, with_info
from .given_socket import copy_options, move_into, renew_if_late
from .own_methods import unpatched
from .server import RdmaServer, bind_sockets
from .streams import ring_streams, server_on_ring, server_on_tcp, stream_writer
from .tls import take_tls

if TYPE_CHECKING:
    import ssl as ssl_module
    from collections.abc import Callable, Iterable

    from ..config import Config, Mode
    from ..negotiation.dialogue import NegotiationResult
    from ..negotiation.engine import Engine
    from ..negotiation.tcp_connect import Candidate
    from .stream_writer import ClientConnected

    Factory = Callable[[], asyncio.BaseProtocol]
    InfoFactory = Callable[[dict[str, Any]], asyncio.BaseProtocol]
    Hosts = str | Iterable[str | None] | None
    #: An option of servers that `aiordma run` sets: whether this accepted connection may be negotiated.
    Permits = Callable[[socket.socket], bool]

_log = logging.getLogger("aiordma.compat")

_LIMIT = 64 * 1024
#: Whether asyncio closes the caller's socket, too, when the protocol cannot be made. (Since 3.14.8.)
_CLOSES_GIVEN = sys.version_info >= (3, 14)


# ---- clients ------------------------------------------------------------------------------------------


async def create_connection(
    protocol_factory: Factory,
    host: str | None = None,
    port: int | str | None = None,
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
    check_client(host, port, options)
    result, info = await _negotiate(host, port, Choice.of(config, mode, rdma_outside_tls), options)
    if result is not None and (result.pipe is not None or result.tls is not None):
        return await _own_connection(protocol_factory, result, info, sock)
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
    port: int | str | None = None,
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
    check_limit(limit)
    check_client(host, port, options)
    result, info = await _negotiate(host, port, Choice.of(config, mode, rdma_outside_tls), options)
    if result is not None and result.pipe is not None:
        return ring_streams(result.pipe, limit, info, sock)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    if result is not None and result.tls is not None:
        own = on_own_transport(loop, result, protocol, info, at_once=True, sock=sock)
        return reader, stream_writer(own, protocol, reader, loop, {})
    transport = await _tcp_connection(lambda: protocol, host, port, result, options)
    with_info(transport, info)
    return reader, stream_writer(transport, protocol, reader, loop, info)


async def _negotiate(
    host: str | None, port: int | str | None, choice: Choice, options: dict[str, Any]
) -> tuple[NegotiationResult | None, dict[str, Any]]:
    """Connect and negotiate; returns the result (None for plain TCP) and the extra info."""
    sock: socket.socket | None = options.get("sock")
    reason = _plain_reason(choice, options, sock)
    if reason is not None or (sock is None and (host is None or port is None)):
        return None, tcp_info(reason)
    if sock is not None:
        return await _negotiate_on(sock, choice, options)
    assert host is not None
    assert port is not None
    check_port(port)
    host = _text(host)
    candidates = await _look_up(host, port, options)
    if candidates is not None:
        port = candidates[0][1][1]
    assert isinstance(port, int)
    local_host = options["local_addr"][0] if options.get("local_addr") else None
    tls = take_tls(options, host, server_side=False)
    if tls is None:
        wanted = ConnectOptions.of(host, config=choice.config, mode=choice.mode, local_host=local_host)
    else:
        wanted = ConnectOptions(choice.config, choice.mode, tls, local_host)
    try:
        result = await connect_and_negotiate(host, port, wanted, candidates=candidates)
    except OSError as error:
        if not options.get("all_errors") or isinstance(error, NegotiationError):
            raise
        raise ExceptionGroup("create_connection failed", getattr(error, "attempts", [error])) from None
    peer_cache.announce("server", f"{host}:{port}", result.path, result.fallback)
    return result, info_of(result)


def _plain_reason(
    choice: Choice, options: dict[str, Any], sock: socket.socket | None
) -> FallbackReason | None:
    """Why no path is negotiated. If that is refused, `sock` is closed: callers forget it, as with asyncio."""
    try:
        return choice.plain_reason(options)
    except NegotiationError:
        if sock is not None:
            sock.close()
        raise


def _text(host: Any) -> str:
    return host if isinstance(host, str) else str(host, "idna")


async def _look_up(host: str, port: int | str, options: dict[str, Any]) -> list[Candidate] | None:
    """All addresses of a certain family, or with the number of a service's port. None: nothing of this kind
    is asked for.
    """
    chosen = {name: options[name] for name in ("family", "proto", "flags") if options.get(name)}
    if not chosen and isinstance(port, int):
        return None
    found = await getaddrinfo(host, port, **chosen)
    return [(int(each[0]), each[4]) for each in found]


def _is_known_as_plain(sock: socket.socket, tls: bool) -> bool:
    """Then nothing is proposed to it, however late, and the program's connection, with its port, stays."""
    host, port = plain_address(sock.getpeername())
    announced = peer_cache.announces_itself([(sock.family, sock.getpeername())])
    return peer_cache.plain_reason((host, port, tls), announced=announced) is not None


async def _negotiate_on(
    sock: socket.socket, choice: Choice, options: dict[str, Any]
) -> tuple[NegotiationResult | None, dict[str, Any]]:
    """Negotiate on the caller's socket, which is closed if this fails, as by asyncio."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as asyncio does, on either path
    tls = take_tls(options, None, server_side=False)
    now = asyncio.get_running_loop().time
    began = now()

    async def is_renewed() -> bool:
        nonlocal began
        renewed = await renew_if_late(sock, now() - began, in_clear=tls is None)
        if renewed:
            began = now()
        return renewed

    async def renew() -> socket.socket | None:
        return sock.dup() if await is_renewed() else None

    try:
        with arriving([(sock.family, sock.getpeername())]):
            await warm_up(choice)
            if choice.mode == "rdma" or not _is_known_as_plain(sock, tls is not None):
                await is_renewed()
            (host, _), remote = plain_address(sock.getsockname()), plain_address(sock.getpeername())
            connect = ConnectOptions(choice.config, choice.mode, tls, host)
            result = await connect_and_negotiate(*remote, connect, sock=sock.dup(), renew=renew)
    except BaseException:
        sock.close()
        raise
    peer_cache.announce("server", show(remote), result.path, result.fallback)
    if result.pipe is not None:
        return result, info_of(result, sock)
    if result.tls is None:
        move_into(sock, result.sock)
        result = result._replace(sock=sock)
    else:
        copy_options(sock, result.sock)
        sock.close()  # the session is bound to the other descriptor, and perhaps to another connection
    return result, info_of(result)


async def _own_connection(
    protocol_factory: Factory, result: NegotiationResult, info: dict[str, Any], sock: socket.socket | None
) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
    """Transport and protocol of a result that the event loop has no transport for."""
    try:
        protocol = protocol_factory()
    except BaseException:
        abort(result)
        if sock is not None and _CLOSES_GIVEN:
            sock.close()
        raise
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    transport = on_own_transport(waiter.get_loop(), result, protocol, info, waiter=waiter, sock=sock)
    try:
        await waiter
    except BaseException:
        transport.abort()
        raise
    return transport, protocol


async def _tcp_connection(
    factory: Factory,
    host: str | None,
    port: int | str | None,
    result: NegotiationResult | None,
    options: dict[str, Any],
) -> asyncio.Transport:
    """Use the loop's own transport, for a new connection or one that the negotiation left on TCP."""
    own = unpatched(asyncio.get_running_loop())
    transport: asyncio.Transport
    if result is None:
        given = options.get("sock")
        with contextlib.nullcontext() if given is None else handing_over(given):
            transport, _ = await own.create_connection(factory, host, port, **options)
        return transport
    try:
        with handing_over(result.sock):
            transport, _ = await own.create_connection(factory, sock=result.sock)
    except BaseException:
        if result.sock is not options.get("sock"):
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
    return await _serve(protocols, host, port, Choice.of(config, mode, rdma_outside_tls), options)


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
        return server_on_ring(limit, client_connected_cb, loop)

    def on_tcp(info: dict[str, Any]) -> asyncio.BaseProtocol:
        return server_on_tcp(limit, client_connected_cb, loop, info)

    protocols = _Protocols(on_ring, on_tcp)
    return await _serve(protocols, host, port, Choice.of(config, mode, rdma_outside_tls), options)


async def connect_accepted_socket(
    protocol_factory: Factory,
    sock: socket.socket,
    *,
    ssl: ssl_module.SSLContext | None = None,
    config: Config | None = None,
    mode: Mode | None = None,
    rdma_outside_tls: bool = False,
    **options: Any,
) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
    """Serve a connection that the program has accepted. See asyncio's `loop.connect_accepted_socket()`.

    It waits for the client's first bytes, for a silent client as long as `Config.server_first_wait_ms`. A
    client that breaks off while the path is negotiated gives a transport that ends at once, as with asyncio,
    whose callers accept in a loop that an error would end.

    :raises OSError: the connection broke, with `ssl` or `mode` "rdma"
    :raises aiordma.errors.NegotiationError: `mode` is "rdma" and RDMA is unavailable, or `ssl` requires TCP
    """
    options["ssl"] = ssl
    check_accepted(sock, options)
    choice = Choice.of(config, mode, rdma_outside_tls)
    if not _may_negotiate_on(sock, choice):
        choice = replace(choice, mode="tcp")
    reason = _plain_reason(choice, options, sock)
    late_proposal: int | None
    if reason is None:
        choice = replace(choice, tls=take_tls(options, None, server_side=True))
        sock.setblocking(False)
        result, sock = await _negotiate_or_end(sock, choice)
        if isinstance(result, _Gone):
            info, late_proposal = {**tcp_info(None), "peername": result.peer}, None
        else:
            peer_cache.announce("client", result.remote_address[0], result.path, result.fallback)
            info = info_of(result)
            if result.pipe is not None or result.tls is not None:
                return await _own_connection(protocol_factory, result, info, None)
            late_proposal = Code.PLAIN_TCP_PEER if result.silent else None
    else:
        info = tcp_info(reason)
        late_proposal = reason.code
    introduction: Introduction | None = None

    def introduce() -> Introduction:
        nonlocal introduction
        introduction = Introduction(protocol_factory(), info, late_proposal=late_proposal)
        return introduction

    own = unpatched(asyncio.get_running_loop())
    with handing_over(sock):
        await own.connect_accepted_socket(introduce, sock, **options)
    assert introduction is not None
    assert introduction.transport is not None
    return introduction.transport, introduction.protocol


class _Gone(NamedTuple):
    """A client that has left while the path was negotiated."""

    #: Its address, while it had one.
    peer: Any


async def _negotiate_or_end(
    sock: socket.socket, path: PathOptions
) -> tuple[NegotiationResult | _Gone, socket.socket]:
    """What came of it, and the socket: with a client that has gone, that of a connection that has ended."""
    if path.mode == "rdma" or path.tls is not None:
        return await negotiate_accepted(sock, path), sock
    kept = sock.dup()
    try:
        result = await negotiate_accepted(sock, path)
    except OSError as error:
        _log.debug("a client has left while its path was negotiated: %s", error)
        peer = None
        with contextlib.suppress(OSError):
            peer = kept.getpeername()
            kept.shutdown(socket.SHUT_RDWR)
        return _Gone(peer), kept
    except BaseException:
        kept.close()
        raise
    kept.close()
    return result, sock


@dataclass(frozen=True, slots=True)
class _Protocols:
    """Factories for the protocol of a connection, given its extra info."""

    on_ring: InfoFactory
    on_tcp: InfoFactory


async def _serve(
    protocols: _Protocols, host: Hosts, port: int | str | None, choice: Choice, options: dict[str, Any]
) -> asyncio.AbstractServer:
    permits: Permits | None = options.pop("permits", None)
    check_server(host, port, options)
    if options.get("ssl") and (not choice.rdma_outside_tls or choice.mode == "tcp"):
        reason = choice.plain_reason({"ssl": True})
        assert reason is not None
        return await _serve_plain(protocols.on_tcp, host, port, reason, options)
    if options.get("sock") is not None and not _may_negotiate_on(options["sock"], choice):
        reason = FallbackReason.of_local(Code.CONFIGURATION, "the socket given as sock: it is no TCP socket")
        return await _serve_plain(protocols.on_tcp, host, port, reason, options)
    ssl = options.get("ssl")
    path = replace(choice, tls=take_tls(options, None, server_side=True))
    if path.mode == "rdma":
        await find_engine(path.config)
    engine = await warm_up(path)
    # If several processes share a port, a process other than the one that granted the ring may accept.
    if options.get("reuse_port") or options.get("sock") is not None or path.tls is not None:
        engine = None

    async def begin(server: RdmaServer, connection: socket.socket) -> None:
        if permits is not None and not permits(connection):
            await _begin_plain(protocols, server, connection, path)
            return
        result = await negotiate_accepted(connection, path, service=server.service)
        peer_cache.announce("client", result.remote_address[0], result.path, result.fallback)
        await _begin(protocols, server, result)

    around = functools.partial(let_ask, options=path)
    server = await _listen(begin, engine, host, port, announces=path.mode != "tcp", around=around, **options)
    server._ssl_context = ssl
    return server


def _may_negotiate_on(sock: socket.socket, choice: Choice) -> bool:
    """Whether it is a socket of TCP. :raises NegotiationError: it is none, and the mode is "rdma"."""
    if family_of(sock) in (socket.AF_INET, socket.AF_INET6):
        return True
    if choice.mode == "rdma":
        raise NegotiationError(Code.CONFIGURATION, "the given socket is no TCP socket; mode is 'rdma'")
    return False


async def _serve_plain(
    on_tcp: InfoFactory, host: Hosts, port: int | str | None, reason: FallbackReason, options: dict[str, Any]
) -> asyncio.AbstractServer:
    """Serve on the event loop's own transports, without a negotiation: in TLS, or on a Unix socket."""
    info, code = tcp_info(reason), reason.code

    def introduce() -> Introduction:
        # A client that allows payload outside TLS sends a Proposal, inside TLS.
        return Introduction(on_tcp(info), info, late_proposal=code)

    own = unpatched(asyncio.get_running_loop())
    server: asyncio.AbstractServer = await own.create_server(introduce, host, port, **options)
    return server


async def _begin_plain(
    protocols: _Protocols, server: RdmaServer, connection: socket.socket, path: PathOptions
) -> None:
    """An accepted connection on which nothing may be negotiated: at once on the loop's own transport."""
    forbidden = NegotiationError(Code.CONFIGURATION, "the rules keep it plain")
    declined = await keep_plain(connection, path, forbidden)
    if declined is not None:
        await _begin(protocols, server, declined)
        return
    reason = FallbackReason.of_error(forbidden)
    info = tcp_info(reason)
    own = unpatched(asyncio.get_running_loop())
    try:
        introduction = Introduction(protocols.on_tcp(info), info, server.adopt)
        with handing_over(connection):
            await own.connect_accepted_socket(lambda: introduction, connection)
    except BaseException:
        connection.close()
        raise


async def _begin(protocols: _Protocols, server: RdmaServer, result: NegotiationResult) -> None:
    """Give an accepted connection its protocol and transport."""
    loop: Any = asyncio.get_running_loop()
    info = info_of(result)
    try:
        if result.pipe is not None or result.tls is not None:
            make = protocols.on_tcp if result.pipe is None else protocols.on_ring
            on_own_transport(loop, result, make(info), info, server=server)
            return
        late_proposal = Code.PLAIN_TCP_PEER if result.silent else None
        introduction = Introduction(protocols.on_tcp(info), info, server.adopt, late_proposal)
        with handing_over(result.sock):
            await unpatched(loop).connect_accepted_socket(lambda: introduction, result.sock)
    except BaseException:
        abort(result)
        raise


async def _listen(
    begin: Callable[[RdmaServer, socket.socket], Any],
    engine: Engine | None,
    host: Hosts,
    port: int | str | None,
    *,
    announces: bool,
    around: Callable[[socket.socket], contextlib.AbstractContextManager[None]],
    backlog: int = 100,
    start_serving: bool = True,
    **options: Any,
) -> RdmaServer:
    sockets = await _sockets(host, port, **options)
    server = RdmaServer(asyncio.get_running_loop(), sockets, begin, backlog, engine, announces=announces)
    server.around_listen = around
    if start_serving:
        await server.begin(options.get("sock"))
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
    keep_alive: bool | None = None,
) -> list[socket.socket]:
    """The sockets to listen on: newly bound, or the caller's own."""
    if sock is None:
        return await bind_sockets(
            host,
            port,
            family=family,
            flags=flags,
            reuse_address=reuse_address,
            reuse_port=reuse_port,
            keep_alive=keep_alive,
        )
    sock.setblocking(False)
    return [sock]
