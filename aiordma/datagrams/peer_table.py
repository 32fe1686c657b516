"""The peers of a datagram endpoint: how each is reached, and until when that is assumed."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import logging
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

from anyio import ClosedResourceError

from .. import wake
from ..addresses import looking_up, plain_address, show, sockaddr_of
from ..errors import Code, FallbackReason, NegotiationError
from ..negotiation import peer_cache
from ..proto.health import EAGER
from ..proto.resolve import MOVED, sender_key
from ..wake.names import getaddrinfo
from .resolver import PeerMovedError, Resolver, say_moved

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..addresses import Address
    from ..config import Config
    from ..datapath._ud import Route
    from ..wake.base import Handle, Job, Waiter
    from .ud_resources import UdParts

_log = logging.getLogger("aiordma.datagram")

#: Answers are looked through for expired ones so often.
_SWEEP_S = 15.0
_KEEPALIVE_S = 10
#: Peers that are asked again at the same time, after a move.
_MOST_AT_ONCE = 32
#: Connections of one peer that it has begun: its last, and one that is about to end.
_MOST_BEGUN = 2


class _RouteConnection(NamedTuple):
    """A TCP connection that stands for a route."""

    nonce: bytes
    """Proved the route."""
    asked: bool
    """This end began it."""


class Peer:
    """What is known of an address."""

    __slots__ = ("address", "job", "links", "reason", "route", "sockaddr", "until", "used", "waiters")

    def __init__(self, address: Address, sockaddr: Any) -> None:
        self.address, self.sockaddr = address, sockaddr
        self.route: Route | None = None
        #: Why it is reached by UDP; None while that is not known.
        self.reason: FallbackReason | None = None
        self.until = 0.0
        self.used = True
        self.job: Job | None = None
        #: TCP connections that stand for the route.
        self.links: dict[socket.socket, _RouteConnection] = {}
        self.waiters: list[Waiter] = []


class PeerTable:
    """Peers by address, at most ``most`` of them. The resolver's home.

    :param sock: the endpoint's UDP port.
    :param reason: why there is no RDMA at all.
    :param changed: called when the path to a peer has changed.
    """

    def __init__(
        self,
        sock: socket.socket,
        listening: list[socket.socket],
        *,
        config: Config,
        parts: UdParts | None,
        remote: Address | None,
        most: int,
        reason: FallbackReason | None,
        changed: Callable[[], None],
    ) -> None:
        self.parts = parts
        self.remote = remote
        self.reason = reason
        #: Numbers missing between the datagrams of peers that are forgotten.
        self.lost = 0
        self.peers: dict[Address, Peer] = {}
        self._sock = sock
        self._config = config
        self._family = sock.family
        self._local_host = plain_address(sock.getsockname())[0]
        self._most = most
        self._changed = changed
        self._names: dict[Address, Address] = {}
        self._waker = wake.current()
        self._closed = False
        self._sweep_timer: Handle | None = None
        #: Peers to be asked again, as soon as there is a queue pair and not too many are being asked.
        self._to_ask: dict[Address, None] = {}
        self._finding = 0
        self.resolver = Resolver(self, config, listening)
        #: The last that went by UDP is a proof: what the kernel reports is not of the program's datagrams.
        self.proof_is_last = False

    def send_proof(self, data: bytes, sockaddr: Any) -> None:
        """For the resolver."""
        if not self._closed:
            self.proof_is_last = True
            with contextlib.suppress(OSError):  # it is repeated
                self._sock.sendto(data, sockaddr)

    # -- addresses

    def known(self, address: Address | None) -> Address:
        """An address with a number for a host."""
        if address is None:
            if self.remote is None:
                raise ValueError("this endpoint has no remote address: pass the address to send to")
            return self.remote
        if address in self.peers:
            return address
        known = self._names.get(address)
        if known is not None:
            return known
        host, port = address
        if not 0 < port < 65536:
            raise ValueError(f"port {port} of {host}: must be from 1 to 65535")
        version = ipaddress.ip_address(host.partition("%")[0]).version  # ValueError for a name
        if (version == 6) != (self._family == socket.AF_INET6):
            raise ValueError(f"{show(address)} is IPv{version}, this endpoint is bound to {self._local_host}")
        return host, port

    async def numeric(self, address: Address | None) -> Address:
        """The same for a name, which is looked up. :raises OSError: it is not known"""
        try:
            return self.known(address)
        except ValueError:
            if address is None or not 0 < address[1] < 65536 or _is_number(address[0]):
                raise
        with looking_up(*address):
            infos = await getaddrinfo(*address, family=self._family, type=socket.SOCK_DGRAM)
        if len(self._names) >= self._most:
            self._names.clear()
        found = self._names[address] = plain_address(infos[0][4])
        return found

    def peer(self, address: Address) -> Peer:
        """The one of this address, which is asked if it is new.

        :raises ValueError: it is not the only one. :raises anyio.ClosedResourceError: the endpoint is closed.
        """
        peer = self.peers.get(address)
        if peer is None:
            if self._closed:
                raise ClosedResourceError("this DatagramEndpoint is closed")
            if self.remote is not None and address != self.remote:
                raise ValueError(f"this endpoint talks to {show(self.remote)} only, not to {show(address)}")
            self._make_room()
            peer = self.peers[address] = Peer(address, self._sockaddr(address))
            if self.parts is None:
                peer.reason = self.reason
                peer.until = float("inf")
            else:
                self._finding += 1
                peer.job = self._waker.spawn(functools.partial(self._find, peer, self.parts))
            self._sweep_later()
        return peer

    def _sockaddr(self, address: Address) -> Any:
        return address if self._family == socket.AF_INET else sockaddr_of(*address)

    def _make_room(self) -> None:
        """Peers are forgotten in the order in which they came, those in use a round later."""
        while len(self.peers) >= self._most:
            for address, peer in list(self.peers.items()):
                route = peer.route
                used = peer.used if route is None else route.used
                if used and len(self.peers) > 1:
                    peer.used = False
                    if route is not None:
                        route.used = False
                    self.peers[address] = self.peers.pop(address)
                else:
                    self._forget(peer)
                    break

    async def _find(self, peer: Peer, parts: UdParts) -> None:
        """Query a peer for its queue pair."""
        host = self._local_host
        local = None if ipaddress.ip_address(host.partition("%")[0]).is_unspecified else host
        try:
            route, nonce, sock = await self._ask(parts, peer, local)
        except NegotiationError as error:
            if peer.route is None:
                peer.reason = FallbackReason.of_error(error)
                peer.until = self._waker.now() + self._config.plain_peer_memory_ms / 1000
                peer_cache.announce("peer", show(peer.address), "UDP", peer.reason)
        else:
            if self._closed or self.parts is not parts or self.peers.get(peer.address) is not peer:
                sock.close()
                parts.port.bury(route)
            else:
                self.adopt(peer.address, route, nonce, sock, asked=True)
        finally:
            self._finding -= 1
            peer.job = None
            self._tell(peer)
            self._ask_more()

    async def _ask(self, parts: UdParts, peer: Peer, local: str | None) -> tuple[Route, bytes, socket.socket]:
        for _ in range(EAGER):
            with contextlib.suppress(PeerMovedError):
                return await self.resolver.ask(parts, self._family, peer.sockaddr, peer.address, local)
        where = show(peer.address)
        raise NegotiationError(Code.PEER_UNREACHABLE, f"the devices of {where} fail one after another")

    def _ask_more(self) -> None:
        """Query the next ones of those that are to be asked again."""
        while self._to_ask and self.parts is not None and self._finding < _MOST_AT_ONCE and not self._closed:
            address = next(iter(self._to_ask))
            del self._to_ask[address]
            self.peer(address)

    def _tell(self, peer: Peer) -> None:
        self._wake(peer)
        self._changed()

    def _wake(self, peer: Peer) -> None:
        for waiter in peer.waiters:
            waiter.set()
        peer.waiters.clear()

    def adopt(
        self, address: Address, route: Route, nonce: bytes, sock: socket.socket, *, asked: bool = False
    ) -> Route | None:
        """For the resolver: the peer at ``address`` has proved its queue pair.

        :param asked: this end had asked.
        """
        parts = self.parts
        if parts is None or self._closed or (self.remote is not None and address != self.remote):
            if parts is not None:
                parts.port.bury(route)
            sock.close()
            return None
        peer = self.peers.get(address)
        if peer is None:
            self._make_room()
            peer = self.peers[address] = Peer(address, self._sockaddr(address))
            self._sweep_later()
        old = peer.route
        if old is not None:
            if (old.gid, old.qpn, old.qkey) != (route.gid, route.qpn, route.qkey):
                # Another process has the address now: connections of the old one end by themselves. A device
                # may give its queue pair the old one's number, but not its random key.
                self._drop_route(peer)
            else:
                # Both queried each other at the same time. Numbers of datagrams go on.
                parts.port.bury(route)
                route = old
        key = sender_key(route.gid, route.qpn)
        other = parts.port.senders.get(key)
        if other is not None and other is not route:
            # The queue pair was known under another address, which its owner has given up.
            holder = self.peers.get(other.address)
            if holder is not None and holder.route is other:
                self._forget(holder)
        peer.route, peer.reason = route, None
        parts.port.senders[key] = route
        peer.links[sock] = _RouteConnection(nonce, asked)
        # A host that vanishes closes nothing.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        self._waker.watch_fd(sock.fileno(), functools.partial(self._on_link, peer, sock))
        begun = [each for each, link in peer.links.items() if not link.asked]
        for each in begun[:-_MOST_BEGUN]:
            self._unlink(peer, each)
        peer_cache.announce("peer", show(address), "RDMA", None)
        self._tell(peer)
        return route

    def _on_link(self, peer: Peer, sock: socket.socket) -> None:
        """A TCP connection that stands for a route has ended; or the peer has moved."""
        data = b""
        try:
            data = sock.recv(len(MOVED))
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, MemoryError):
            pass
        if data == MOVED:
            self._on_moved(peer)
            return
        if data:
            _log.warning("unexpected bytes on the resolver's connection with %s", show(peer.address))
        self._unlink(peer, sock)
        if not peer.links:
            self._forget(peer)

    def _on_moved(self, peer: Peer) -> None:
        """The end that asked asks again. (Both can be asked only where nothing is in between.)"""
        asked = any(link.asked for link in peer.links.values())
        self._forget(peer)
        if asked:
            self._to_ask[peer.address] = None
            self._ask_more()

    def _unlink(self, peer: Peer, sock: socket.socket) -> None:
        self.resolver.forget(peer.links.pop(sock).nonce)
        self._waker.unwatch_fd(sock.fileno())
        sock.close()

    def _drop_route(self, peer: Peer) -> None:
        route, peer.route = peer.route, None
        for sock in list(peer.links):
            self._unlink(peer, sock)
        if route is not None and self.parts is not None:
            port = self.parts.port
            self.lost += route.lost
            key = sender_key(route.gid, route.qpn)
            if port.senders.get(key) is route:
                del port.senders[key]
            port.bury(route)

    def _forget(self, peer: Peer) -> None:
        """The next datagram to it begins anew."""
        self._let_go(peer)
        self._changed()

    def _let_go(self, peer: Peer) -> None:
        self._drop_route(peer)
        if self.peers.get(peer.address) is peer:
            del self.peers[peer.address]
        if peer.job is not None:
            peer.job.cancel()
        self._wake(peer)

    def _sweep_later(self) -> None:
        if self._sweep_timer is None and not self._closed:
            self._sweep_timer = self._waker.call_at(self._waker.now() + _SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Forget answers that have expired: plain peers may have learned RDMA meanwhile."""
        self._sweep_timer = None
        now = self._waker.now()
        for peer in list(self.peers.values()):
            if peer.route is None and peer.job is None and now >= peer.until:
                self._forget(peer)
        if self.peers:
            self._sweep_later()

    # -- the device

    def move(self, parts: UdParts | None, reason: FallbackReason | None) -> None:
        """From now on this is the queue pair, or there is none for this reason. Begin anew with all peers."""
        for peer in self.peers.values():
            asked = False
            for sock, link in peer.links.items():
                say_moved(sock)
                asked = asked or link.asked
            # On the way to UDP the peers learn of it, and are asked once there is a queue pair again.
            if peer.route is not None and (asked or parts is None):
                self._to_ask[peer.address] = None
        self.resolver.move()
        self.forget_all()
        self.parts, self.reason = parts, reason
        if self.remote is not None:
            self.peer(self.remote)
        for address in list(self._to_ask)[: -self._most]:
            del self._to_ask[address]
        self._ask_more()

    def forget_all(self) -> None:
        """Without a word to the endpoint, which would ask the same peers of what is just being replaced."""
        for peer in list(self.peers.values()):
            self._let_go(peer)

    # -- the end

    def close(self) -> None:
        """Stop querying and answering, and forget all peers."""
        self._closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self.resolver.close()
        self.forget_all()


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
