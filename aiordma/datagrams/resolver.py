"""The resolver of datagram endpoints: the I/O around ``proto/resolve.py``, for both ends.

Each query is answered by a task of its own with a time limit; one that sends garbage, or nothing, harms no
other. What has been proved is handed to the endpoint as a route and the TCP connection whose end ends it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import secrets
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import anyio

from .. import wake
from ..addresses import leads_to, show
from ..errors import Code, NegotiationError, RemoteProtocolError, describe
from ..negotiation.tcp_connect import connect_tcp
from ..proto.resolve import (
    MOVED,
    NONCE_BYTES,
    PROVE,
    PROVED,
    Hello,
    QueuePairAddress,
    Splitter,
    Welcome,
    is_proof,
    refusal,
    sender_key,
    udp_proof,
)
from ..wake.accepting import Acceptor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..addresses import Address
    from ..config import Config
    from ..datapath._ud import Route
    from ..errors import FallbackReason
    from ..wake.base import Job, Waiter
    from .ud_resources import UdParts

_log = logging.getLogger("aiordma.datagram")

#: Queries that are answered at the same time; more are refused.
_MOST_QUERIES = 256
_ACCEPTS_PER_TURN = 16
_MOST_SPENT = 1024
#: A proof is repeated after this time, then after longer ones: datagrams get lost.
_REPEAT_S, _LONGER = 0.05, 1.5
#: The same where the peer's TCP connection is with another address than its queue pair's: after 0.05, 0.2 and
#: 0.65 s, and not again.
_LONGER_UNPROVED, _TIMES_UNPROVED = 3, 4


class ResolverUser(Protocol):
    """The endpoint, as the resolver sees it."""

    parts: UdParts | None
    #: Why there are none.
    reason: FallbackReason | None

    def send_proof(self, data: bytes, sockaddr: Any) -> None:
        """Send from the UDP port, if the kernel takes it now."""

    def adopt(self, address: Address, route: Route, nonce: bytes, sock: socket.socket) -> Route | None:
        """A peer has proved its identity: the route is good until ``sock`` ends. Then call
        :meth:`Resolver.forget` with the nonce.

        The route that is used now, since a peer has one only; None: the peer is not wanted."""


class PeerMovedError(Exception):
    """The peer had another queue pair by the time that this one was to be proved."""


def say_moved(sock: socket.socket) -> None:
    """The other end of a resolver's connection may ask again. If it cannot be told, it asks when it sends."""
    with contextlib.suppress(OSError):
        sock.send(MOVED)


class _Question(NamedTuple):
    """A peer was asked, and has yet to answer from its queue pair."""

    route: Route
    senders: dict[bytes, Route]
    """Of the port that the route is for."""
    waiter: Waiter


@dataclass(slots=True)
class _Query:
    """A peer has sent Hello and must prove that it is reachable there."""

    where: QueuePairAddress
    nonce: bytes
    their_nonce: bytes
    sock: socket.socket
    waiter: Waiter
    from_queue_pair: bool = False
    from_port: Address | None = None
    route: Route | None = None


class Resolver:
    """Answers queries on listening TCP sockets, and makes them. Belongs to one endpoint."""

    def __init__(self, home: ResolverUser, config: Config, listening: Sequence[socket.socket]) -> None:
        self._home = home
        self._config = config
        self._waker = wake.current()
        self._queries: dict[bytes, _Query] = {}
        #: Nonces of queries that are over: a proof may come late, and is no data then.
        self._spent: dict[bytes, None] = {}
        self._asked: dict[bytes, _Question] = {}
        self._jobs: dict[socket.socket, Job] = {}
        #: answers given, and proofs that were wrong
        self.answered = self.rejected = 0
        self._acceptor = Acceptor(self._waker, listening, self, _ACCEPTS_PER_TURN, holds=True)
        self._acceptor.resume()

    # -- answering

    def has_room(self) -> bool:
        """What does not fit is closed."""
        return True

    def accept_failed(self, error: OSError | MemoryError, *, pauses: bool) -> None:
        """The peers wait, or one has gone."""
        if pauses:
            _log.warning("queries of peers are not answered for now: %s", str(error) or "no memory")

    def take(self, sock: socket.socket) -> None:
        """A peer asks."""
        if len(self._jobs) >= _MOST_QUERIES:
            sock.close()
        else:
            self._jobs[sock] = self._waker.spawn(functools.partial(self._serve, sock))

    async def _serve(self, sock: socket.socket) -> None:
        query: _Query | None = None
        try:
            with anyio.fail_after(self._config.negotiate_timeout_ms / 1000):
                query = await self._answer(sock)
                while query is not None and query.route is None and query.nonce in self._queries:
                    await query.waiter.wait()
        except (OSError, RemoteProtocolError) as exc:  # TimeoutError is an OSError
            _log.debug("a query to the resolver came to nothing: %s", str(exc) or "no proof in time")
        finally:
            del self._jobs[sock]
            if query is None or query.route is None:
                if query is not None:
                    self.forget(query.nonce)
                sock.close()

    async def _answer(self, sock: socket.socket) -> _Query | None:
        hello = Hello.decode(await self._read(sock, Hello.SIZE))
        parts = self._home.parts
        try:
            if parts is None:
                reason = self._home.reason
                raise NegotiationError(Code.NO_DEVICE if reason is None else reason.code)
            parts.engine.check_reachable(hello.where.host_id)
        except NegotiationError as error:
            sock.send(refusal(hello.nonce, error.code).encode())
            return None
        nonce = secrets.token_bytes(NONCE_BYTES)
        query = _Query(hello.where, nonce, hello.nonce, sock, self._waker.new_waiter())
        # This fails where the peer has reset the connection: then there is nothing to be proved.
        sock.send(Welcome(hello.nonce, nonce, parts.where).encode())
        self._queries[nonce] = query
        return query

    async def _read(self, sock: socket.socket, size: int) -> bytes:
        splitter = Splitter(size)
        while True:
            try:
                data = sock.recv(splitter.missing)
            except (BlockingIOError, InterruptedError):
                await self._waker.wait_readable(sock.fileno())
                continue
            if splitter.feed(data):
                return splitter.data

    # -- proofs, as they come in

    def on_udp(self, data: bytes, address: Address) -> bool:
        """Whether this datagram, which came to the UDP port, was a proof and no data."""
        nonce = is_proof(data)
        if nonce is None:
            return False
        query = self._queries.get(nonce)
        if query is None:
            return nonce in self._spent
        if query.from_port is None:
            query.from_port = address
            self._conclude(query)
        return True

    def on_datagram(self, what: int, gid: bytes, qpn: int, payload: bytes) -> None:
        """A datagram of the resolver came to the queue pair; the device reports where from."""
        if what == PROVE and (query := self._queries.get(payload)) is not None:
            if (gid, qpn) == (query.where.gid, query.where.qpn):
                query.from_queue_pair = True
                self._conclude(query)
                return
        elif what == PROVED and (asked := self._asked.get(payload)) is not None:
            if (gid, qpn) == (asked.route.gid, asked.route.qpn):
                # The peer may send at once, before the task that asked has run.
                asked.senders.setdefault(sender_key(gid, qpn), asked.route)
                asked.waiter.set()
                return
        self.rejected += 1

    def _conclude(self, query: _Query) -> None:
        parts = self._home.parts
        if not query.from_queue_pair or query.from_port is None or parts is None:
            return
        if query.route is None:
            try:
                route = parts.route(query.where, query.from_port)
            except NegotiationError as error:
                _log.warning("no path to %s: %s", show(query.from_port), error)
            else:
                self.answered += 1
                query.route = self._home.adopt(query.from_port, route, query.nonce, query.sock)
            if query.route is None:
                self.forget(query.nonce)  # what is proved again would take an address handle each time
            query.waiter.set()
        # Also for a proof that was repeated: the answer to the first one may be lost.
        if query.route is not None:
            parts.port.send_control(query.route, PROVED, query.their_nonce)

    def forget(self, nonce: bytes) -> None:
        """The route that was proved with it has ended, or none was."""
        if self._queries.pop(nonce, None) is not None:
            self._spent[nonce] = None
            if len(self._spent) > _MOST_SPENT:
                del self._spent[next(iter(self._spent))]

    def move(self) -> None:
        """The queue pair that was named in answers is gone: those that have not used it yet ask again."""
        for query in [query for query in self._queries.values() if query.route is None]:
            say_moved(query.sock)
            self.forget(query.nonce)
            job = self._jobs.get(query.sock)
            if job is not None:
                job.cancel()

    # -- querying

    async def ask(
        self, parts: UdParts, family: int, sockaddr: Any, address: Address, local_host: str | None
    ) -> tuple[Route, bytes, socket.socket]:
        """The route to the queue pair of the endpoint at ``address``, proved; the nonce and the connection
        for ``adopt()``.

        :raises NegotiationError: there is none, or it does not work; ``code`` and ``text`` say why.
        :raises PeerMovedError: ask again.
        """
        where = show(sockaddr)
        route: Route | None = None
        nonce = secrets.token_bytes(NONCE_BYTES)
        with contextlib.ExitStack() as stack:
            try:
                with anyio.fail_after(self._config.negotiate_timeout_ms / 1000):
                    sock = await connect_tcp([(family, sockaddr)], local_host)
                    stack.callback(sock.close)
                    sock.send(Hello(nonce, parts.where).encode())
                    welcome = Welcome.decode(await self._read(sock, Welcome.SIZE), nonce)
            except RemoteProtocolError as exc:
                raise NegotiationError(Code.PROTOCOL_VIOLATION, str(exc)) from exc
            except OSError as exc:
                reason = str(exc) or "no answer in time"
                raise NegotiationError(Code.PLAIN_UDP_PEER, f"no resolver at {where}: {reason}") from exc
            if welcome.where is None:
                raise NegotiationError(
                    welcome.code, f"{where} has no RDMA for datagrams: {describe(welcome.code)}"
                )
            route = parts.route(welcome.where, address)
            waiter = self._waker.new_waiter()
            senders = parts.port.senders
            self._asked[nonce] = _Question(route, senders, waiter)
            proved = False
            try:
                proved = await self._prove(parts, route, welcome.nonce, sockaddr, sock, waiter)
            finally:
                del self._asked[nonce]
                if not proved:
                    key = sender_key(route.gid, route.qpn)
                    if senders.get(key) is route:
                        del senders[key]
                    parts.port.bury(route)
            if not proved:
                raise NegotiationError(
                    Code.PEER_UNREACHABLE,
                    f"datagrams between the devices of this end and {where} do not arrive",
                )
            stack.pop_all()
        return route, nonce, sock

    async def _prove(
        self, parts: UdParts, route: Route, nonce: bytes, sockaddr: Any, sock: socket.socket, waiter: Waiter
    ) -> bool:
        now = self._waker.now
        deadline, pause = now() + self._config.link_timeout_ms / 1000, _REPEAT_S
        # The answer may have named a third host.
        unproved = not leads_to(route.gid, sockaddr[0]) and route.gid != parts.where.gid
        longer, times = (_LONGER_UNPROVED, _TIMES_UNPROVED) if unproved else (_LONGER, sys.maxsize)
        while now() < deadline and not parts.port.failed:
            if times:
                times -= 1
                parts.port.send_control(route, PROVE, nonce)
            self._home.send_proof(udp_proof(nonce), sockaddr)
            if await waiter.wait_until(min(deadline, now() + pause)):
                return True
            try:
                said = sock.recv(len(MOVED), socket.MSG_PEEK)
            except (BlockingIOError, InterruptedError):
                pause *= longer
                continue
            except OSError:
                return False  # it has reset the connection
            if said == MOVED:
                raise PeerMovedError
            return False  # it does not want us
        return False

    # -- the end

    def close(self) -> None:
        """Stop answering; what was adopted is the endpoint's."""
        self._acceptor.close()
        for job in self._jobs.values():
            job.cancel()
