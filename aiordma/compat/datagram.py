"""asyncio's datagram surface: `DatagramTransport` and `DatagramProtocol` on aiordma's datagrams.

`create_datagram_endpoint()` is asyncio's function of that name on a `DatagramEndpoint`: many peers,
unreliable. `create_datagram_connection()` and `create_datagram_server()` have no counterpart in asyncio: one
peer, reliable and in order, for the same protocols. There pause_writing() means that the peer does not keep
up, and nothing is lost.

As on streams, a protocol is called from the loop only, never from inside another task that polls.
"""

from __future__ import annotations

import asyncio
import asyncio.log
import asyncio.trsock
import socket
import warnings
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, overload

import anyio

from ..addresses import full_address, plain_address
from ..datagrams.connection import message_pipe_of, open_message_pipe
from ..datagrams.endpoint import open_datagram_endpoint
from ..errors import as_connection_error
from ..negotiation import peer_cache
from ..negotiation.engine import warm_up
from ..negotiation.options import ConnectOptions, ListenOptions, settings_of
from ..negotiation.server import negotiate_accepted
from ..plain import check_plain
from ..proto.clc import Kind
from ..wake.ending import note_unclosed
from ..wake.origin import here
from .arguments import check_port, look_up_both
from .flow import FlowControl, datagram_cost
from .plain_datagrams import create_plain_endpoint, why_plain
from .server import RdmaServer, bind_sockets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from ssl import SSLContext
    from typing import TypeVar

    from ..addresses import Address
    from ..config import Config, Mode
    from ..datagrams.endpoint import DatagramEndpoint
    from ..negotiation.dialogue import NegotiationResult
    from ..pipes.contracts import Buffer, MessagePipe
    from .contracts import TransportOwner

    P = TypeVar("P", bound=asyncio.DatagramProtocol)

__all__ = [
    "MessageTransport",
    "create_datagram_connection",
    "create_datagram_endpoint",
    "create_datagram_server",
]

#: datagrams given to the protocol in one callback before others of the loop get their turn
_RECEIVE_BUDGET = 256
_LOG_THRESHOLD = 5


class _Datagrams(Protocol):
    """What the transport needs of a connection or an endpoint."""

    #: The path without RDMA.
    without_rdma: str

    @property
    def fallback_reason(self) -> object:
        """Why it takes that path now; None: it does not, or has done so from the beginning."""

    def try_send(self, data: Buffer, address: Address | None) -> bool: ...
    def receive_many(self, most: int) -> list[tuple[bytes, Any]] | None: ...
    def listen(self, readable: Callable[[], None], writable: Callable[[], None]) -> None: ...
    def hear_errors(self, callback: Callable[[OSError], None]) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class _ReliablePeer:
    """One peer, reliable."""

    without_rdma = "tcp"

    def __init__(self, pipe: MessagePipe, peer: Address) -> None:
        self.pipe, self.peer = pipe, peer
        self.close, self.abort = pipe.close, pipe.abort

    def try_send(self, data: Buffer, address: Address | None) -> bool:
        if address is not None and plain_address(address) != self.peer:
            raise ValueError(f"Invalid address: must be None or {self.peer}")
        return self.pipe.try_send(data)

    def receive_many(self, most: int) -> list[tuple[bytes, Any]] | None:
        messages = self.pipe.receive_many(most)
        if messages is None and self.pipe.spin_readable():
            messages = self.pipe.receive_many(most)
        peer = full_address(self.peer)
        return None if messages is None else [(message, peer) for message in messages]

    def listen(self, readable: Callable[[], None], writable: Callable[[], None]) -> None:
        self.pipe.on_readable = readable
        self.pipe.on_writable = writable

    def hear_errors(self, callback: Callable[[OSError], None]) -> None:
        """There are none of single datagrams."""

    @property
    def fallback_reason(self) -> object:
        return getattr(self.pipe, "fallback_reason", None)


class _Endpoint:
    """Many peers, unreliable."""

    without_rdma = "udp"

    def __init__(self, endpoint: DatagramEndpoint) -> None:
        self.endpoint = endpoint
        self.close = self.abort = endpoint.close
        self.hear_errors = endpoint.hear_errors

    def try_send(self, data: Buffer, address: Address | None) -> bool:
        try:
            self.endpoint.send_nowait((data, None if address is None else plain_address(address)))
        except anyio.WouldBlock:
            return False
        return True

    def receive_many(self, most: int) -> list[tuple[bytes, Any]] | None:
        datagrams = self.endpoint.take_many(most)
        if datagrams is not None and ":" in datagrams[0][1][0]:
            return [(data, full_address(sender)) for data, sender in datagrams]
        return datagrams

    def listen(self, readable: Callable[[], None], writable: Callable[[], None]) -> None:
        self.endpoint.call_when(readable, writable)

    @property
    def fallback_reason(self) -> object:
        return self.endpoint.fallback_reason


class MessageTransport(FlowControl, asyncio.DatagramTransport):
    """`asyncio.DatagramTransport` on aiordma's datagrams; made by the functions of this module.

    Beyond asyncio's: `pause_reading()` and `resume_reading()`. On a connection a paused transport stops the
    peer; on an endpoint it loses what finds no room in the queue.
    """

    _loop: asyncio.AbstractEventLoop
    _protocol_paused: bool
    _maybe_pause_protocol: Callable[[], None]
    _maybe_resume_protocol: Callable[[], None]

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        carrier: _Datagrams,
        protocol: asyncio.DatagramProtocol,
        extra: Mapping[str, Any],
        server: TransportOwner | None = None,
    ) -> None:
        super().__init__(dict(extra), loop)
        self._carrier = carrier
        self.origin = here()
        self._try_send = carrier.try_send
        self._protocol = protocol
        self._server = server
        self._queue: deque[tuple[Buffer, Any]] = deque()
        self._queued = 0
        self._received: deque[tuple[bytes, Any]] = deque()  # taken, and not delivered yet
        self._closing = False
        self._lost = False  # connection_lost() is scheduled or over
        self._lost_writes = 0
        self._paused = False
        self._scheduled = False
        if server is not None:
            server.attach(self)
        loop.call_soon(protocol.connection_made, self)
        loop.call_soon(self._start)
        carrier.hear_errors(self._hear_error)

    def _start(self) -> None:
        if not self._closing:
            self._carrier.listen(self._schedule, self._flush_soon)
            self._pump()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio. The path may change from "rdma" to "tcp" (of an endpoint: to "udp") and back."""
        if name in ("aiordma.path", "aiordma.fallback_reason"):
            reason = self._carrier.fallback_reason
            if reason is not None:
                return self._carrier.without_rdma if name == "aiordma.path" else reason
        return super().get_extra_info(name, default)

    def __repr__(self) -> str:
        state = "closed" if self._lost else "closing" if self._closing else "open"
        return f"<{type(self).__name__} {state} peer={self.get_extra_info('peername')} queued={self._queued}>"

    def __del__(self, _warn: Any = warnings.warn) -> None:
        if not getattr(self, "_lost", True):
            note_unclosed(repr(self), self.origin)
            _warn(f"unclosed transport {self!r}", ResourceWarning, source=self)
            self._carrier.abort()

    # ---- protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """What comes from now on goes to another protocol."""
        self._protocol = protocol  # type: ignore[assignment]

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol in use."""
        return self._protocol

    # ---- sending

    def sendto(self, data: Buffer, addr: Any = None) -> None:
        """Send a datagram; never blocks. What finds no room waits in a queue (see the water marks).

        A datagram that cannot be sent (too long ...) is reported to `error_received()`.

        :raises TypeError: not bytes-like.
        :raises ValueError: an address that is not the only peer's, or the name of a host.
        """
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__!r}")
        check_plain(data)
        if self._closing:
            self._lost_writes += 1
            if self._lost and self._lost_writes >= _LOG_THRESHOLD:
                asyncio.log.logger.warning("socket.send() raised exception.")
            return
        if self._queue or not self._attempt(data, addr):
            kept = bytes(data)
            self._queue.append((kept, addr))
            self._queued += datagram_cost(kept)
            self._maybe_pause_protocol()

    def _attempt(self, data: Buffer, addr: Any) -> bool:
        """Whether the datagram is dealt with."""
        try:
            return self._try_send(data, addr)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
            self._lose(exc)
        except OSError as exc:
            self._protocol.error_received(exc)
        return True

    def _hear_error(self, exc: OSError) -> None:
        self._loop.call_soon(self._tell_error, exc)

    def _tell_error(self, exc: OSError) -> None:
        if not self._lost:
            self._protocol.error_received(exc)

    def _flush_soon(self) -> None:
        if self._queue or self._closing:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        try:
            if not self._send_waiting():
                return
            self._maybe_resume_protocol()
        except (SystemExit, KeyboardInterrupt):
            self._loop.call_soon(self._flush)  # the loop may be run again: nothing else would go on here
            raise
        if self._closing and not self._lost:
            self._finish(None)

    def _send_waiting(self) -> bool:
        """Send what waits; whether all of it is dealt with."""
        queue = self._queue
        while queue and not self._lost:
            data, addr = queue[0]
            sent = True
            try:
                sent = self._attempt(data, addr)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as exc:  # its own fault or error_received()'s: the next ones are sent
                self._report(exc, "A datagram cannot be sent, or protocol.error_received() call failed.")
            finally:
                if sent and queue:  # the protocol may have aborted in error_received()
                    queue.popleft()
                    self._queued -= datagram_cost(data)
            if not sent:
                return False
        return True

    def get_write_buffer_size(self) -> int:
        """Bytes that wait for room, with what asyncio counts for the header of each datagram."""
        return self._queued

    # ---- receiving

    def is_reading(self) -> bool:
        """Neither paused nor closing."""
        return not self._paused and not self._closing

    def pause_reading(self) -> None:
        """Deliver nothing until resume_reading()."""
        self._paused = True

    def resume_reading(self) -> None:
        """Deliver again."""
        if self._paused:
            self._paused = False
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._scheduled = False
        if not self._received and not self._fill():
            return
        try:
            while self._received and not self._paused and not self._closing:
                self._deliver()
        finally:
            if not self._paused and not self._closing:
                self._schedule()

    def _deliver(self) -> None:
        """Give the protocol the next datagram. Should that fail, it is reported, and the next ones come all
        the same, as with asyncio: what one peer sends must not end what others use.
        """
        try:
            self._protocol.datagram_received(*self._received.popleft())
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self._report(exc, "protocol.datagram_received() call failed.")

    def _fill(self) -> bool:
        """Whether there is something to deliver."""
        if self._paused or self._closing:
            return False
        try:
            datagrams = self._carrier.receive_many(_RECEIVE_BUDGET)
        except anyio.EndOfStream:
            self.close()
            return False
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
            self._lose(exc)
            return False
        self._received.extend(datagrams or ())
        return bool(self._received)

    # ---- the end

    def is_closing(self) -> bool:
        """close() or abort() was called, or the connection is lost."""
        return self._closing

    def close(self) -> None:
        """Close when everything queued is sent."""
        if self._closing:
            return
        self._closing = True
        if not self._queue:
            self._finish(None)

    def abort(self) -> None:
        """Close at once; on a connection the peer gets an error."""
        if not self._lost:
            self._closing = True
            self._carrier.abort()
            self._finish(None)

    def _lose(self, exc: BaseException) -> None:
        self._closing = True
        self._finish(as_connection_error(exc.__cause__ or exc))

    def _report(self, exc: BaseException, message: str) -> None:
        self._loop.call_exception_handler(
            {"message": message, "exception": exc, "transport": self, "protocol": self._protocol}
        )

    def _finish(self, exc: BaseException | None) -> None:
        if self._lost:
            return
        self._lost = True
        self._queue.clear()
        self._queued = 0
        self._carrier.close()
        self._loop.call_soon(self._tell_lost, exc)

    def _tell_lost(self, exc: BaseException | None) -> None:
        try:
            self._protocol.connection_lost(exc)  # type: ignore[arg-type]
        finally:
            if self._server is not None:
                self._server.detach(self)


# ---- the functions


@overload
async def create_datagram_endpoint(
    protocol_factory: Callable[[], P],
    local_addr: tuple[str | None, int] | None = None,
    remote_addr: Address | None = None,
    *,
    family: int = 0,
    proto: int = 0,
    flags: int = 0,
    config: Config | None = None,
    mode: Mode | None = None,
    max_peers: int = 1024,
    receive_queue: int = 1024,
) -> tuple[MessageTransport, P]: ...


@overload
async def create_datagram_endpoint(
    protocol_factory: Callable[[], P],
    local_addr: tuple[str | None, int] | str | None = None,
    remote_addr: Address | str | None = None,
    *,
    family: int = 0,
    proto: int = 0,
    flags: int = 0,
    reuse_port: bool | None = None,
    allow_broadcast: bool | None = None,
    sock: socket.socket | None = None,
    config: Config | None = None,
    mode: Mode | None = None,
    max_peers: int = 1024,
    receive_queue: int = 1024,
) -> tuple[asyncio.DatagramTransport, P]: ...


async def create_datagram_endpoint(  # noqa: PLR0913  # the keywords of asyncio's
    protocol_factory: Callable[[], P],
    local_addr: Any = None,
    remote_addr: Any = None,
    *,
    family: int = 0,
    proto: int = 0,
    flags: int = 0,
    reuse_port: bool | None = None,
    allow_broadcast: bool | None = None,
    sock: socket.socket | None = None,
    config: Config | None = None,
    mode: Mode | None = None,
    max_peers: int = 1024,
    receive_queue: int = 1024,
) -> tuple[asyncio.DatagramTransport, P]:
    """`loop.create_datagram_endpoint()` on :func:`aiordma.open_datagram_endpoint`, with both's parameters.

    Addresses given to `sendto()` must be numbers, as on asyncio's own transports. What only UDP has makes an
    endpoint on the loop's own UDP transport: `sock`, `reuse_port`, `allow_broadcast`, and other families than
    IPv4 and IPv6.

    :raises aiordma.NegotiationError: one of these is given, and `mode` is "rdma".
    """
    options = {
        "local_addr": local_addr, "remote_addr": remote_addr,
        "family": family, "proto": proto, "flags": flags, "reuse_port": reuse_port,
        "allow_broadcast": allow_broadcast, "sock": sock,
    }  # fmt: skip
    _, wanted = settings_of(config, mode)
    reason = why_plain(wanted, options)
    if reason is not None:
        return await create_plain_endpoint(protocol_factory, reason, options)
    for address in (local_addr, remote_addr):
        if address is not None:
            check_port(address[1])
    if family or proto or flags:
        local_addr, remote_addr = await look_up_both(local_addr, remote_addr, family, proto, flags)
    loop = asyncio.get_running_loop()
    endpoint = await open_datagram_endpoint(
        local_addr,
        remote_addr,
        config=config,
        mode=mode,
        max_peers=max_peers,
        receive_queue=receive_queue,
    )
    reason = endpoint.fallback_reason
    extra = {
        "sockname": full_address(endpoint.local_address),
        "peername": endpoint.remote_address and full_address(endpoint.remote_address),
        "socket": asyncio.trsock.TransportSocket(endpoint.udp_socket),
        "aiordma.path": "rdma" if reason is None else "udp",
        "aiordma.fallback_reason": reason,
        "aiordma.endpoint": endpoint,
    }
    carrier = _Endpoint(endpoint)
    protocol = _made(protocol_factory, carrier.close)
    return await _begun(MessageTransport(loop, carrier, protocol, extra)), protocol


def _made(protocol_factory: Callable[[], P], give_up: Callable[[], None]) -> P:
    """A new protocol. Should the user's factory fail, what it was for has no owner: `give_up` it."""
    try:
        return protocol_factory()
    except BaseException:
        give_up()
        raise


async def _begun(transport: MessageTransport) -> MessageTransport:
    """`connection_made()` has been called."""
    try:
        await asyncio.sleep(0)
    except BaseException:
        transport.abort()  # the caller never gets it
        raise
    return transport


def _connection_transport(
    protocol: asyncio.DatagramProtocol,
    pipe: MessagePipe,
    result: NegotiationResult,
    server: TransportOwner | None = None,
) -> MessageTransport:
    extra: dict[str, Any] = {
        "sockname": full_address(result.local_address),
        "peername": full_address(result.remote_address),
        "aiordma.path": pipe.path,
        "aiordma.fallback_reason": result.fallback,
    }
    if result.tls is not None:
        extra["ssl_object"] = result.tls.session
    carrier = _ReliablePeer(pipe, result.remote_address)
    return MessageTransport(asyncio.get_running_loop(), carrier, protocol, extra, server)


async def create_datagram_connection(
    protocol_factory: Callable[[], P],
    host: str,
    port: int,
    *,
    config: Config | None = None,
    mode: Mode | None = None,
    ssl: SSLContext | bool | None = None,
    server_hostname: str | None = None,
    rdma_outside_tls: bool = False,
) -> tuple[MessageTransport, P]:
    """A datagram protocol on :func:`aiordma.connect_datagram`, whose parameters and errors these are."""
    options = ConnectOptions.of(
        host,
        config=config,
        mode=mode,
        ssl=ssl,
        server_hostname=server_hostname,
        rdma_outside_tls=rdma_outside_tls,
    )
    pipe, result = await open_message_pipe(host, port, options)
    protocol = _made(protocol_factory, pipe.abort)
    return await _begun(_connection_transport(protocol, pipe, result)), protocol


async def create_datagram_server(  # noqa: PLR0913  # the keywords of asyncio's create_server()
    protocol_factory: Callable[[], asyncio.DatagramProtocol],
    host: str | Iterable[str | None] | None = None,
    port: int = 0,
    *,
    config: Config | None = None,
    mode: Mode | None = None,
    backlog: int = 100,
    ssl: SSLContext | None = None,
    rdma_outside_tls: bool = False,
    reuse_address: bool | None = None,
    reuse_port: bool | None = None,
    start_serving: bool = True,
) -> RdmaServer:
    """A server whose connections are datagram protocols: :func:`aiordma.listen_datagram` for asyncio."""
    options = ListenOptions.of(config=config, mode=mode, ssl=ssl, rdma_outside_tls=rdma_outside_tls)
    await warm_up(options)
    sockets = await bind_sockets(host, port, reuse_address=reuse_address, reuse_port=reuse_port)

    async def begin(server: RdmaServer, sock: socket.socket) -> None:
        result = await negotiate_accepted(sock, options, kind=Kind.DATAGRAMS)
        pipe = await message_pipe_of(result, options.config)
        peer_cache.announce("client", result.remote_address[0], result.path, result.fallback)
        _connection_transport(_made(protocol_factory, pipe.abort), pipe, result, server)

    server = RdmaServer(asyncio.get_running_loop(), sockets, begin, backlog)
    if start_serving:
        await server.begin()
    return server
