"""Connecting a link's queue pair through rdma_cm, for devices that have no other method (iWARP).

The server listens for this one link, on a port that its Accept names. The client connects to it before it
sends its Confirm, and presents the token of the Accept and the number of its queue pair. The connection lives
as long as the link: when it ends, the other queue pair has ended.

On iWARP the connecting side must send first (RFC 5044, 7.1), so there the client asks to confirm the link.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hmac
import ipaddress
import logging
import secrets
import socket
import struct
import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import anyio
import anyio.to_thread

from ..errors import Code, NegotiationError, VerbsError
from ..verbs.lifetime import release_all
from ..verbs.rdmacm import CmEvent, ConnectionId, Event, EventChannel, number_of, sockaddr

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable

    from ..wake.base import Waker

logger = logging.getLogger("aiordma.link")

_HELLO = struct.Struct(">16sI")  # token, number of the client's queue pair
_EVENTS_AT_ONCE = 16
_RESOLVE_MS = 2000
_MOST_PORTS = 32
_SIOCGIFADDR = 0x8915


class CmAddress(NamedTuple):
    """Where a server listens; as in the Accept."""

    port: int
    #: 16 bytes, IPv4 mapped.
    address: bytes
    token: bytes

    @property
    def host(self) -> str:
        address = ipaddress.IPv6Address(self.address)
        return str(address.ipv4_mapped or address)


class CmConnection:
    """One end of the connection under a queue pair.

    :param library: the device's rdma_cm (``Backend.rdma_cm()``).
    :param device: name of the queue pair's device; connections over other devices are refused.
    :param depth: READs that may be outstanding, in either direction.
    :param traffic_class: of what this end sends.
    :param on_peer: server: called with the number of the client's queue pair, before anything comes from it.
    :param on_lost: called once with the reason when the connection has ended, after it had been made.
    """

    def __init__(
        self,
        waker: Waker,
        library: ctypes.CDLL,
        device: str,
        qp_number: int,
        depth: int,
        traffic_class: int,
        on_peer: Callable[[int], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._waker, self._device, self._qp_number, self._depth = waker, device, qp_number, depth
        self._traffic_class, self._on_peer, self._on_lost = traffic_class, on_peer, on_lost
        self._token = b""
        self._listener: ConnectionId | None = None
        self._id: ConnectionId | None = None
        self._events: deque[Event] = deque()
        self._news = waker.new_waiter()
        self._up = self._closed = self._calling = False
        self._lock = threading.Lock()
        self._channel = EventChannel(library)
        waker.watch_fd(self._channel.fd, self._on_readable)

    # ---- server

    def listen(self, host: str) -> CmAddress:
        """Listen at this address of this host, or at another one if this is not the device's.

        On a host without a network the loopback address serves. It belongs to no device until the client, of
        the same host, connects; both ends look at the device then.

        :raises NegotiationError: the device has no address. :raises VerbsError:
        """
        spare: tuple[ConnectionId, int] | None = None
        for candidate in (host, *_own_addresses()):
            try:
                address = sockaddr(candidate, 0)
            except ValueError:
                continue  # an address with a scope
            try:
                listener, port = self._listener_at(address)
            except VerbsError as error:
                if error.errno not in (errno.ENODEV, errno.EADDRNOTAVAIL):
                    raise
                continue
            if listener.device == self._device:
                if spare is not None:
                    spare[0].close()
                return self._listening(listener, port, candidate)
            if spare is None and candidate == host and ipaddress.ip_address(host).is_loopback:
                spare = listener, port
            else:
                listener.close()
        if spare is not None:
            return self._listening(*spare, host)
        raise NegotiationError(
            Code.NO_ROUTE, f"neither {host} nor an IPv4 address of this host belongs to {self._device}"
        )

    def _listening(self, listener: ConnectionId, port: int, host: str) -> CmAddress:
        self._listener, self._token = listener, secrets.token_bytes(16)
        packed = ipaddress.ip_address(host).packed
        mapped = packed if len(packed) == 16 else bytes(10) + b"\xff\xff" + packed
        return CmAddress(port, mapped, self._token)

    def _listener_at(self, address: bytes) -> tuple[ConnectionId, int]:
        """A listener, and its port, which rdma_cm chooses: of a list of its own. On iWARP the port is TCP's
        too, and a socket may hold it, as rdma_listen() says then. Raises VerbsError."""
        tries = _MOST_PORTS
        while True:
            listener = ConnectionId(self._channel)
            try:
                listener.set_traffic_class(self._traffic_class)
                return listener, listener.listen(address)
            except VerbsError as error:
                listener.close()
                tries -= 1
                if error.errno != errno.EADDRINUSE or not tries:
                    raise

    def _on_request(self, event: Event) -> None:
        """Any host may connect; only the client knows the token."""
        requester = ConnectionId(self._channel, event.id)
        hello = event.private_data[: _HELLO.size]
        token, number = _HELLO.unpack(hello) if len(hello) == _HELLO.size else (b"", 0)
        welcome = self._id is None and bool(self._token) and hmac.compare_digest(token, self._token)
        try:
            if welcome and requester.device == self._device:
                self._id = requester
                self._on_peer(number & 0xFFFFFF)
                requester.accept(
                    self._qp_number,
                    min(event.initiator_depth, self._depth),
                    min(event.responder_resources, self._depth),
                )
                return
            logger.debug("a stranger's connection by rdma_cm is refused")
            requester.reject()
        except VerbsError as error:
            logger.debug("QP %d: %s", self._qp_number, error)
            if requester is self._id:
                self._on_event(Event(event.id, CmEvent.CONNECT_ERROR, -(error.errno or 0), b"", 0, 0))
                return
        requester.close()

    async def accepted(self) -> None:
        """Wait for the client; time limits are the caller's. :raises VerbsError: no connection."""
        await self._expect(CmEvent.ESTABLISHED)
        self._on_established()

    # ---- client

    async def connect(self, server: CmAddress) -> None:
        """Connect; time limits are the caller's, but rdma_connect() itself is never interrupted.

        :raises VerbsError: the server does not answer, or not over this device.
        """
        self._id = own = ConnectionId(self._channel)
        own.set_traffic_class(self._traffic_class)
        own.resolve_address(sockaddr(server.host, server.port), _RESOLVE_MS)
        await self._expect(CmEvent.ADDR_RESOLVED)
        if own.device != self._device:
            where = (
                f"the way to {server.host} leads over {own.device or 'another device'}, not {self._device}"
            )
            raise VerbsError(errno.EHOSTUNREACH, "rdma_resolve_addr", where)
        own.resolve_route(_RESOLVE_MS)
        await self._expect(CmEvent.ROUTE_RESOLVED)
        hello = _HELLO.pack(server.token, self._qp_number)
        # Some drivers block in there until the server's port has answered.
        await anyio.to_thread.run_sync(self._call, own, hello)
        await self._expect(CmEvent.ESTABLISHED)
        self._on_established()

    def _call(self, own: ConnectionId, hello: bytes) -> None:
        """In a thread; a connection that is closed meanwhile is released here."""
        with self._lock:
            if self._closed:
                return
            self._calling = True
        try:
            own.connect(self._qp_number, self._depth, hello)
        finally:
            self._called()

    def _called(self) -> None:
        with self._lock:
            self._calling = False
            closed = self._closed
        if closed:
            self._release()

    # ---- both

    def _on_readable(self) -> None:
        for _ in range(_EVENTS_AT_ONCE):
            try:
                event = self._channel.next_event() if not self._closed else None
            except (VerbsError, MemoryError) as error:  # an event may be lost
                self._waker.unwatch_fd(self._channel.fd)
                logger.warning("QP %d: %s", self._qp_number, str(error) or "no memory")
                number = self._id.handle if self._id is not None else 0
                event = Event(number, CmEvent.DISCONNECTED, -number_of(error), b"", 0, 0)
                self._on_event(event)
                return
            if event is None:
                return
            if event.type == CmEvent.CONNECT_REQUEST:
                self._on_request(event)
            elif self._id is not None and event.id == self._id.handle:
                self._on_event(event)

    def _on_event(self, event: Event) -> None:
        logger.debug("QP %d: rdma_cm reports %s", self._qp_number, event)
        if not self._up:
            self._events.append(event)
            self._news.set()
        elif event.type in (CmEvent.DISCONNECTED, CmEvent.DEVICE_REMOVAL):
            self._on_lost(str(event))

    async def _expect(self, wanted: CmEvent) -> None:
        while not self._events:
            await self._news.wait()
        event = self._events.popleft()
        if event.type != wanted:
            number = -event.status if event.status < 0 else errno.ECONNREFUSED
            raise VerbsError(
                number, "rdma_connect", f"QP {self._qp_number}: {event} instead of {wanted.name}"
            )

    def _on_established(self) -> None:
        self._up = True
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        for event in self._events:
            self._on_event(event)
        self._events.clear()

    def close(self) -> None:
        """The connection ends at once. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            calling = self._calling
        self._waker.unwatch_fd(self._channel.fd)
        if not calling:
            self._release()

    def _release(self) -> None:
        ends = [end.close for end in (self._id, self._listener) if end is not None]
        release_all(f"rdma_cm of QP {self._qp_number}", *ends, self._channel.close)


def _own_addresses() -> list[str]:
    """The first IPv4 address of each interface (netdevice(7), SIOCGIFADDR)."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(sock, _SIOCGIFADDR, struct.pack("40s", name.encode()))
                found.append(socket.inet_ntoa(answer[20:24]))
    return found
