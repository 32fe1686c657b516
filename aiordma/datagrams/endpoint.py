"""Datagrams to and from many peers, without connections: UD queue pairs, and UDP where RDMA is not available.

``await open_datagram_endpoint(("127.0.0.1", 7000))`` gives a :class:`DatagramEndpoint`. It owns a UDP port
and, with RDMA, a UD queue pair. It queries a peer that it sends to for its queue pair in the background
(``resolver.py``); until the peer has answered, and if it has none, datagrams go by UDP. Both paths are
unreliable and keep no order.

What is received waits in one bounded queue. When it is full, what comes is dropped and counted: no peer can
take memory, and none can stop the others.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import socket
import struct
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio.abc
from anyio import ClosedResourceError, WouldBlock

from ..addresses import plain_address, show
from ..attributes import RdmaAttribute, address_attributes
from ..errors import Code, FallbackReason, NegotiationError, describe
from ..negotiation.engine import find_engine
from ..negotiation.opening import opening
from ..negotiation.options import check_mode, config_of
from ..plain import check_plain
from ..proto.record import too_large
from ..verbs.remedies import warn_once
from ..wake.duplex import CLOSED, Duplex, OutgoingMessage
from ..wake.interrupts import uninterrupted
from ..wake.threads import check_threads
from .peer_table import PeerTable
from .sockets import SO_RXQ_OVFL, Sockets, addresses, bind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..addresses import Address
    from ..config import Config, Mode
    from ..datapath._ud import UdPort
    from ..pipes.contracts import Buffer
    from ..wake.base import Waker
    from .device import EndpointDevice
    from .peer_table import Peer
    from .ud_resources import UdParts

    MakeDevice = Callable[["DatagramEndpoint", deque[tuple[bytes, Address]], int], EndpointDevice]

_log = logging.getLogger("aiordma.datagram")

Datagram = tuple[bytes, "Address"]

#: The most that fits into a UDP datagram over IPv4.
_UDP_MOST = 65507
_READS_PER_TURN = 64


class EndpointStatistics(NamedTuple):
    """Counters of an endpoint; what does not arrive is counted in one of ``dropped_*`` and ``lost``."""

    sent_rdma: int
    sent_udp: int
    received_rdma: int
    received_udp: int
    #: the queue was full, since the application did not take what had come
    dropped_full: int
    #: came from a queue pair that has not proved its identity, or from others than ``remote``
    dropped_unknown: int
    #: were no datagrams of ours at all
    dropped_malformed: int
    #: the kernel had no room for them on the UDP port (as far as it has reported)
    dropped_by_kernel: int
    #: numbers that were missing between datagrams of peers on RDMA
    lost: int
    #: of peers known now
    peers_rdma: int
    peers_udp: int
    #: how often it got another queue pair, since the former one or its device had failed
    moves: int


@uninterrupted
class DatagramEndpoint(Duplex, anyio.abc.UnreliableObjectStream[Datagram]):
    """Items are ``(data, (host, port))``. Unreliable and unordered, as UDP is; never duplicated by this end.

    Made by :func:`open_datagram_endpoint`. Belongs to the event loop it was made in. One task may send while
    another receives; a second one in the same direction gets ``anyio.BusyResourceError``.
    """

    def __init__(
        self,
        sockets: Sockets,
        *,
        config: Config,
        mode: Mode,
        remote: Address | None,
        max_peers: int,
        receive_queue: int,
        make_device: MakeDevice | None,
        fallback_reason: FallbackReason | None,
    ) -> None:
        super().__init__()
        self._sock = sock = sockets.udp
        self._fd = sock.fileno()
        self._must = mode == "rdma"
        self._local_address = plain_address(sock.getsockname())
        self._remote = remote
        self._most = receive_queue
        self._queue: deque[Datagram] = deque()
        self._fallback_reason = fallback_reason
        self._on_readable: Callable[[], None] | None = None
        self._on_writable: Callable[[], None] | None = None
        self._on_error: Callable[[OSError], None] | None = None
        self._watching_writable = False
        self._closed = False
        self._sent_udp = self._received_udp = self._full = self._unknown = self._by_kernel = 0
        self._device: EndpointDevice | None = None
        if make_device is not None:
            self._device = make_device(self, self._queue, receive_queue)
        parts = None if self._device is None else self._device.parts
        self._port: UdPort | None = None if parts is None else parts.port
        self._table = PeerTable(
            sock,
            sockets.listening,
            config=config,
            parts=parts,
            remote=remote,
            most=max_peers,
            reason=fallback_reason,
            changed=self._wake_writers,
        )
        self._peers = self._table.peers
        if self._port is not None:
            self._port.on_control = self._table.resolver.on_datagram
        self._waker.watch_fd(self._fd, self._on_udp)
        if remote is not None:
            self._table.peer(remote)
        _register(self._waker, self)
        check_threads(self, self._waker, "send_nowait", "receive_nowait", "close")

    # -- sending

    async def send(self, item: tuple[Buffer, Address | None]) -> None:
        """Send ``(data, (host, port))``; without an address, to the endpoint's ``remote``.

        Returns when the device or the kernel has it. A host's name is looked up, and remembered.

        :raises OSError: (``errno.EMSGSIZE``) larger than the path to this peer takes; or the kernel's answer
        :raises aiordma.NegotiationError: mode "rdma", and this peer is not reached by RDMA
        :raises anyio.ClosedResourceError: after :meth:`aclose`
        """
        data, address = item
        waker = self._waker
        if self._send_guard is None and waker.may_begin():
            peer = self._peers.get(address or self._remote)  # type: ignore[arg-type]
            if peer is not None and self._put(peer, data):
                waker.count(0)
                return
        await self._send_later(data, address)

    async def _send_later(self, data: Buffer, address: Address | None) -> None:
        if self._send_guard is not None:
            raise self._refusal(self._send_guard, "sending to")
        target = await self._table.numeric(address)
        # There is nothing to poll for: neither the device nor the kernel reports when it will have room.
        item = OutgoingMessage(lambda: self._put(self._table.peer(target), data), lambda: False)
        await self._send_when_room(item, False)

    async def sendto(self, data: Buffer, host: str, port: int) -> None:
        """``send((data, (host, port)))``."""
        await self.send((data, (host, port)))

    def send_nowait(self, item: tuple[Buffer, Address | None]) -> None:
        """Send now. Never yields to the event loop.

        :raises anyio.WouldBlock: neither device nor kernel takes it now; or, in mode "rdma", the peer is
            still being asked for its queue pair
        :raises ValueError: the host is a name that :meth:`send` or :meth:`resolve` has not looked up
        """
        if self._send_guard is not None:
            raise self._refusal(self._send_guard, "sending to")
        data, address = item
        peer = self._table.peer(self._table.known(address))
        if not self._put(peer, data):
            self._look()
            if not self._put(peer, data):
                raise WouldBlock

    def _put(self, peer: Peer, data: Buffer) -> bool:
        """False: not now."""
        if self._closed:
            raise ClosedResourceError("this DatagramEndpoint is closed")
        route = peer.route
        if route is not None and self._port is not None:
            return self._port.try_send(route, data)
        return self._put_udp(peer, data)

    def _put_udp(self, peer: Peer, data: Buffer) -> bool:
        if self._must:
            if (reason := peer.reason) is not None:
                detail = reason.text.removeprefix(describe(reason.code)).removeprefix(": ")
                raise NegotiationError(reason.code, detail)
            return False
        peer.used = True
        if self._table.proof_is_last:
            self._table.proof_is_last = False
            self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # or this datagram got its error
        check_plain(data)
        size = memoryview(data).nbytes
        if size > self.max_message_bytes:
            raise too_large(size, self.max_message_bytes)
        try:
            self._sock.sendto(data, peer.sockaddr)
        except (BlockingIOError, InterruptedError):
            if not self._watching_writable:
                self._watching_writable = True
                self._waker.watch_writable(self._fd, self._writable_again)
            return False
        self._sent_udp += 1
        return True

    def _writable_again(self) -> None:
        self._watching_writable = False
        self._waker.unwatch_writable(self._fd)
        self._wake_writers()

    def _wake_writers(self) -> None:
        if self._on_writable is not None:
            self._on_writable()

    # -- receiving

    async def receive(self) -> Datagram:
        """The next datagram and its sender: ``(data, (host, port))``.

        Cancelled: nothing was taken.

        :raises anyio.ClosedResourceError: this end is closed
        :raises anyio.BusyResourceError: another task is receiving
        """
        waker = self._waker
        if self._receive_guard is None and waker.may_begin():
            if self._queue or (self._port is not None and self._port.spin()):
                waker.count_polled(0)
                return self._queue.popleft()
            return await self._receive_when_there(self._take, True)
        return await self._receive_when_there(self._take, False)

    def receive_nowait(self) -> Datagram:
        """The next datagram, if it is here now. :raises anyio.WouldBlock: none is"""
        if self._receive_guard is not None:
            raise self._refusal(self._receive_guard, "receiving from")
        if not self._queue:
            self._look()
            if not self._queue:
                raise WouldBlock
        return self._queue.popleft()

    def _look(self) -> None:
        """Take what has come, whether or not the loop has had a turn since."""
        if self._port is not None:
            self._port.look()
        self._on_udp()

    async def receive_many(self, most: int = 256) -> list[Datagram]:
        """All datagrams that are here, from one to ``most``; otherwise as :meth:`receive`."""
        if most < 1:
            raise ValueError(f"most must be at least 1, not {most}")

        return await self._receive_when_there(lambda: self.take_many(most), False)

    def take_many(self, most: int) -> list[Datagram] | None:
        """What is there now, at most ``most``; None when nothing is."""
        self._check_open()
        queue = self._queue
        return [queue.popleft() for _ in range(min(most, len(queue)))] or None

    def call_when(self, readable: Callable[[], None], writable: Callable[[], None]) -> None:
        """For surfaces with callbacks: from now on call these when something has come, and when there is room
        after there was none."""
        self._call_when_readable(readable)
        self._call_when_writable(writable)

    def hear_errors(self, callback: Callable[[OSError], None]) -> None:
        """For surfaces with callbacks: what the kernel hears by ICMP of datagrams that went by UDP.

        It tells where there is a `remote`, and drops what others send to the UDP port from now on.
        """
        self._on_error = callback
        if self._remote is not None:
            with contextlib.suppress(OSError):  # out of reach: sending says so
                self._sock.connect(self._table.peer(self._remote).sockaddr)

    def _take(self) -> Datagram | None:
        if self._closed:
            raise ClosedResourceError("this DatagramEndpoint is closed")
        return self._queue.popleft() if self._queue else None

    def _on_udp(self) -> None:
        came = False
        for _ in range(_READS_PER_TURN):
            try:
                data, ancillary, _, sockaddr = self._sock.recvmsg(65536, 64)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as exc:
                if self._table.proof_is_last or self._on_error is None:
                    _log.debug("%r: %s", self, exc)  # of something sent before
                else:
                    self._on_error(exc)
                continue
            except MemoryError:  # dropped, or the loop would call endlessly for it
                self._full += 1
                with contextlib.suppress(OSError, MemoryError):
                    self._sock.recv(1)
                break
            try:
                came = self._on_datagram(data, ancillary, sockaddr) or came
            except MemoryError:
                self._full += 1
        if came and self._on_readable is not None:
            self._on_readable()

    def _on_datagram(
        self, data: bytes, ancillary: list[tuple[int, int, bytes]], sockaddr: tuple[str, int]
    ) -> bool:
        """Whether it is for the program, and queued."""
        for level, kind, value in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, SO_RXQ_OVFL) and len(value) == 4:
                self._by_kernel = struct.unpack("=I", value)[0]
        address = plain_address(sockaddr)
        if self._table.resolver.on_udp(data, address):
            return False
        if self._remote is not None and address != self._remote:
            self._unknown += 1
            return False
        if len(self._queue) >= self._most:
            self._full += 1
            return False
        self._queue.append((data, address))
        self._received_udp += 1
        return True

    # -- how peers are reached

    async def resolve(self, address: Address | None = None) -> str:
        """Find out how a peer is reached: ``"rdma"`` or ``"udp"``. (Sending does not wait for that.)

        :raises OSError: the host's name is not known
        """
        self._check_open()
        target = await self._table.numeric(address)
        await self._waker.checkpoint()
        while True:
            self._check_open()
            # Behind each wait: it may have been forgotten and be asked anew.
            peer = self._table.peer(target)
            if peer.route is not None:
                return "rdma"
            if peer.reason is not None:
                return "udp"
            waiter = self._waker.new_waiter()
            peer.waiters.append(waiter)
            try:
                await waiter.wait()
            finally:
                if waiter in peer.waiters:
                    peer.waiters.remove(waiter)

    def path_to(self, address: Address | None = None) -> str | None:
        """How a peer is reached: ``"rdma"``, ``"udp"``, or None while that is not known."""
        peer = self._peers.get(self._table.known(address))
        if peer is None or (peer.route is None and peer.reason is None):
            return None
        return "rdma" if peer.route is not None else "udp"

    def reason_for(self, address: Address | None = None) -> FallbackReason | None:
        """Why a peer is reached by UDP; None when it is not, or that is not known yet."""
        peer = self._peers.get(self._table.known(address))
        return None if peer is None or peer.route is not None else peer.reason

    def device_changed(self, parts: UdParts | None, reason: FallbackReason | None) -> None:
        """For its device: another queue pair, or UDP for this reason."""
        self._fallback_reason = reason
        self._port = None if parts is None else parts.port
        if self._port is not None:
            self._port.on_control = self._table.resolver.on_datagram
            self._attend()
        self._table.move(parts, reason)
        self._wake_writers()

    # -- the end

    async def aclose(self) -> None:
        """Close the queue pair and the ports. Datagrams under way may be lost, as always. Idempotent."""
        self.close()
        await self._waker.checkpoint()

    def close(self) -> None:
        """What :meth:`aclose` does, without the checkpoint."""
        if self._closed:
            return
        self._closed = True
        self._send_guard = self._receive_guard = CLOSED
        self._on_readable = self._on_writable = None
        self._table.close()
        self._waker.unwatch_fd(self._fd)
        if self._watching_writable:
            self._waker.unwatch_writable(self._fd)
        self._sock.close()
        if self._device is not None:
            self._device.close()
        self._queue.clear()
        self._waker.locals.get(_OPEN, set()).discard(self)
        self._wake_all()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedResourceError("this DatagramEndpoint is closed")

    # -- what it is

    @property
    def local_address(self) -> Address:
        """Host and port."""
        return self._local_address

    @property
    def remote_address(self) -> Address | None:
        """The only peer, if there is one."""
        return self._remote

    @property
    def udp_socket(self) -> socket.socket:
        """The socket of its UDP port, for options. What goes by RDMA does not pass it."""
        return self._sock

    @property
    def fallback_reason(self) -> FallbackReason | None:
        """Why this endpoint has no queue pair and reaches all peers by UDP; None when it has one."""
        return self._fallback_reason

    @property
    def max_message_bytes(self) -> int:
        """The largest datagram: the MTU of the device's port, else what UDP takes. A peer may take less."""
        return _UDP_MOST if self._port is None else self._port.mtu

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        attributes = dict(address_attributes(self._local_address, self._remote))
        attributes[RdmaAttribute.path] = lambda: "udp" if self._fallback_reason is not None else "rdma"
        reason = self._fallback_reason
        if reason is not None:
            attributes[RdmaAttribute.fallback_reason] = lambda: reason
        return attributes

    def statistics(self) -> EndpointStatistics:
        """What happened so far."""
        port: Counter[str] = Counter() if self._device is None else self._device.counts
        routes = [peer.route for peer in self._peers.values() if peer.route is not None]
        return EndpointStatistics(
            sent_rdma=port["sent"],
            sent_udp=self._sent_udp,
            received_rdma=port["received"],
            received_udp=self._received_udp,
            dropped_full=self._full + port["dropped_full"],
            dropped_unknown=self._unknown + port["dropped_unknown"],
            dropped_malformed=self._table.resolver.rejected + port["malformed"],
            dropped_by_kernel=self._by_kernel,
            lost=self._table.lost + sum(route.lost for route in routes),
            peers_rdma=len(routes),
            peers_udp=len(self._peers) - len(routes),
            moves=0 if self._device is None else self._device.moves,
        )

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        to = "" if self._remote is None else f" - {show(self._remote)}"
        kind = "udp" if self._fallback_reason is not None else "rdma"
        return f"<DatagramEndpoint {kind} {show(self._local_address)}{to}{state}>"

    # -- what there is to wait for

    def _spin_readable(self) -> bool:
        return self._port is not None and self._port.spin()

    def _call_when_readable(self, callback: Callable[[], None]) -> None:
        self._on_readable = callback
        self._attend()

    def _call_when_writable(self, callback: Callable[[], None]) -> None:
        self._on_writable = callback
        self._attend()

    def _attend(self) -> None:
        """Have the queue pair call back, if somebody waits."""
        if self._port is not None and (self._on_readable is not None or self._on_writable is not None):
            self._port.on_readable = self._on_readable
            self._port.on_writable = self._wake_writers
            self._port.park()


_OPEN = "datagram endpoints"


def _register(waker: Waker, endpoint: DatagramEndpoint) -> None:
    """Loops end with what is left in them: queue pairs before the device."""
    if _OPEN not in waker.locals:
        waker.locals[_OPEN] = set()
        waker.at_loop_end(functools.partial(_close_all, waker))
    waker.locals[_OPEN].add(endpoint)


def _close_all(waker: Waker) -> None:
    for endpoint in list(waker.locals.get(_OPEN, ())):
        endpoint.close()
    waker.locals.pop(_OPEN, None)


@opening
@uninterrupted
async def open_datagram_endpoint(
    local: tuple[str | None, int] | None = None,
    remote: Address | None = None,
    *,
    config: Config | None = None,
    mode: Mode | None = None,
    max_peers: int = 1024,
    receive_queue: int = 1024,
) -> DatagramEndpoint:
    """Open an endpoint for datagrams to and from any peer: with ``async with``, or ``await``.

    :param local: host and port (UDP, and TCP for the resolver); default: any interface and a free port.
        With ``remote``, the interface by which it is reached stands for any.
    :param remote: the only peer: items may leave out its address, and what others send is dropped.
    :param config: settings; default: ``Config.from_env()``.
    :param mode: ``"auto"``; ``"rdma"``: nothing is ever sent by UDP, sending to a peer without RDMA is an
        error; ``"tcp"``: never RDMA, a UDP socket and nothing else. Default: the one of ``config``.
    :param max_peers: peers that are remembered (with an address handle and a TCP connection each, if they are
        reached by RDMA); beyond so many, those not used for the longest time are forgotten.
    :param receive_queue: datagrams that wait to be received; beyond so many they are dropped and counted.
    :raises OSError: the address cannot be bound, naming it.
    :raises ValueError: a parameter has no valid value.
    :raises aiordma.NegotiationError: mode "rdma", and this end has no RDMA.
    """
    if max_peers < 1 or receive_queue < 1:
        raise ValueError(f"max_peers={max_peers} and receive_queue={receive_queue} must be at least 1")
    config = config_of(config)
    mode = config.mode if mode is None else mode
    check_mode(mode)
    make_device, reason = await _find_device(config, mode)
    remote, family, sockaddr = await addresses(local or (None, 0), remote)
    sockets = bind(family, sockaddr, alone=mode == "tcp")
    make = functools.partial(
        DatagramEndpoint,
        sockets,
        config=config,
        mode=mode,
        remote=remote,
        max_peers=max_peers,
        receive_queue=receive_queue,
    )
    try:
        try:
            return make(make_device=make_device, fallback_reason=reason)
        except NegotiationError as error:
            if mode == "rdma":
                raise
            return make(make_device=None, fallback_reason=FallbackReason.of_error(error))
    except BaseException:
        sockets.close()
        raise


async def _find_device(config: Config, mode: Mode) -> tuple[MakeDevice | None, FallbackReason | None]:
    """What makes the device of an endpoint; or None, and why there is none.

    :raises aiordma.NegotiationError: there is none, and the mode is "rdma".
    """
    if mode == "tcp":
        return None, FallbackReason.of_local(Code.DISABLED)
    try:
        engine = await find_engine(config)
        from .device import EndpointDevice  # it needs the compiled modules

        def make(endpoint: DatagramEndpoint, queue: deque[Datagram], most: int) -> EndpointDevice:
            return EndpointDevice(endpoint, engine, config, queue, most)  # type: ignore[arg-type]

        return make, None
    except NegotiationError as error:
        if mode == "rdma":
            raise
        warn_once(error)
        return None, FallbackReason.of_error(error)
