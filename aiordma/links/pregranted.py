"""Zero-round-trip open: connections that begin on rings that the server granted in advance.

A negotiation waits for the server's process, and waking that process takes most of the time. So when a client
opens one connection after the other, the server grants it rings over their link: allocated and registered for
this client and one listener (:class:`GrantingListener`). To connect to that address, the client opens a TCP
connection, which the kernel completes, and sends one Claim on it; data goes into the ring at once. The server
finds the Claim when it accepts the TCP connection, and its stream begins with the data already in the ring.

The client decides about grants and the server about connections, so a grant that was withdrawn is never used:

* A grant belongs to the client until the client has claimed it or returned it (LLC Ticket Back). A server
  whose listener closes asks the client to return its grants.
* Before the server's first message on the link, the client cannot tell whether the server has accepted the
  connection. If the TCP connection ends first, or the server declines, or the time limit passes, the stream
  breaks, and the client asks over the link (Ticket Back again). The answer decides about the client's ring:
  either the server never wrote and never will, or a connection exists that ends like any other.

On the network a grant is a *ticket* (:class:`aiordma.proto.llcown.Ticket`), as in the settings.
"""

from __future__ import annotations

import functools
import ipaddress
import logging
import weakref
from collections import Counter, deque
from typing import TYPE_CHECKING

from ..addresses import packed_ip, show
from ..errors import Code, NegotiationError, RemoteProtocolError
from ..proto import clc, clcstream, llcown
from ..proto.proof import claim_proof
from ..verbs.memory.budget import MemoryLimitError
from .ring_size import first_ring_bytes

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from ..addresses import Address
    from ..pipes._switchable import SwitchablePipe
    from .contracts import GroupView, MemberView

_log = logging.getLogger("aiordma.link")

#: Rings that are granted and not claimed take this part of the memory limit at most.
_PART = 4


def _packed(address: Address) -> tuple[bytes, int]:
    """An address as encoded in a CLC Accept."""
    return packed_ip(address[0]), address[1]


@functools.lru_cache(maxsize=256)
def _shown(packed: bytes, port: int) -> str:
    ip = ipaddress.IPv6Address(packed)
    return show((str(ip.ipv4_mapped or ip), port))


class Grants:
    """Shared by all engines of an event loop: listeners that grant rings, and servers that granted some."""

    def __init__(self) -> None:
        self.listeners: dict[int, GrantingListener] = {}
        #: By address and traffic class: the holder of the rings, and the number of the server's listener.
        self.servers: dict[tuple[str, int], tuple[RingHolder, int]] = {}
        self.granters: weakref.WeakSet[RingGranter] = weakref.WeakSet()
        #: Memory of the rings that are granted and not claimed: in all, and by the address of the clients.
        self.held_bytes = 0
        self._held: Counter[str] = Counter()
        self._last_number = 0

    def has_room(self, host: str, size: int, most: int) -> bool:
        """Whether a ring of ``size`` bytes may be granted to a client at this address.

        What is granted takes ``most`` bytes at most, and that of one address no more than it leaves to
        others: half of all, if it is alone.
        """
        return self._held[host] + size <= most - self.held_bytes - size

    def hold(self, host: str, nbytes: int) -> None:
        """So many more bytes are granted to clients at this address, or less."""
        self.held_bytes += nbytes
        self._held[host] += nbytes
        if not self._held[host]:
            del self._held[host]

    def new_listener(self, has_room: Callable[[], bool]) -> GrantingListener:
        """:param has_room: True while the listener would accept one more connection."""
        number = self._last_number
        while True:
            number = number % 0xFFFF + 1
            if number not in self.listeners:
                break
        self._last_number = number
        listener = self.listeners[number] = GrantingListener(self, number, has_room)
        return listener


# ---- server


class GrantingListener:
    """A listener that grants rings. Made by ``Engine.grant_rings``."""

    def __init__(self, grants: Grants, number: int, has_room: Callable[[], bool]) -> None:
        self._grants, self.number, self.has_room = grants, number, has_room

    def fields(self, local: Address) -> dict[str, object]:
        """The fields of an Accept that describe the listener.

        :param local: the server's address of the connection.
        """
        host, port = _packed(local)
        return {"service": self.number, "service_address": host, "service_port": port}

    def close(self) -> None:
        """Recall the outstanding grants, as the listener is closed. Idempotent."""
        if self._grants.listeners.pop(self.number, None) is not None:
            for granter in list(self._grants.granters):
                granter.recall(self)


class RingGranter:
    """The server's end: outstanding grants of one link."""

    def __init__(self, group: GroupView, grants: Grants) -> None:
        self._group, self._grants = group, grants
        #: The client's limit (from its Proposal), for all listeners together.
        self.limit = 0
        self._out: dict[int, tuple[MemberView, GrantingListener]] = {}
        self._held: dict[int, int] = {}  # bytes of each
        self._last = 0
        # Grants to keep outstanding, by listener: none until the client reconnects, more as they run out.
        self._level: dict[int, int] = {}
        grants.granters.add(self)

    def __len__(self) -> int:
        return len(self._out)

    @property
    def ring_bytes(self) -> int:
        """Memory of the rings granted and not claimed."""
        return sum(member.ring.length for member, _ in self._out.values())

    @property
    def held_bytes(self) -> int:
        """The same with what the device needs to use them."""
        return sum(member.held_bytes for member, _ in self._out.values())

    def on_negotiated(self, listener: GrantingListener, *, first: bool) -> None:
        """The client has negotiated a connection.

        :param first: the first one of the link: most clients make no other.
        """
        if not first:
            level = self._level.get(listener.number, 0)
            self._level[listener.number] = min(max(1, 2 * level), self.limit)
            self._grant(listener)

    def _grant(self, listener: GrantingListener) -> None:
        out = sum(1 for _, owner in self._out.values() if owner is listener)
        while (
            out < self._level.get(listener.number, 0)
            and len(self._out) < self.limit
            and listener.number in self._grants.listeners
            and listener.has_room()
            and self._group.active
            and self._has_memory()
        ):
            try:
                member = self._group.prepare()
            except MemoryLimitError:
                return
            out += 1
            self._last = self._last % 0xFFFFFFFF + 1
            self._out[self._last] = member, listener
            self._held[self._last] = member.held_bytes
            self._grants.hold(self._group.key.host, member.held_bytes)
            grant = llcown.Ticket(
                number=self._last,
                service=listener.number,
                token=member.pipe.token,
                rkey=member.ring.rkey,
                ring_addr=member.ring.address,
                ring_bytes=member.ring.length,
            )
            self._group.queue_llc(grant.encode())

    def _has_memory(self) -> bool:
        engine = self._group.engine
        size, pool = first_ring_bytes(engine.config, engine.pool), engine.pool
        if not pool.budget.has_spare(size):
            return False
        return self._grants.has_room(self._group.key.host, size, pool.limit_bytes // _PART)

    def _take(self, number: int) -> tuple[MemberView, GrantingListener]:
        """It is granted no more. :raises KeyError: nor was it before."""
        taken = self._out.pop(number)
        self._grants.hold(self._group.key.host, -self._held.pop(number))
        return taken

    def _proves(self, claim: clc.Claim) -> bool:
        return claim.proof == claim_proof(claim.fields, claim.engine_id, self._group.secret)

    def granted(self, claim: clc.Claim) -> bool:
        """True if the claim is for an outstanding grant and comes from the client of this link."""
        return claim.ticket in self._out and self._proves(claim)

    def claim(
        self, claim: clc.Claim, listener: GrantingListener | None, *, proved: bool = False
    ) -> SwitchablePipe:
        """Make the connection of a Claim.

        :param listener: the listener that accepted its TCP connection.
        :param proved: :meth:`granted` was asked already.
        :raises NegotiationError: no such grant is outstanding, or it belongs to another client.
        """
        member, owner = self._out.get(claim.ticket, (None, None))
        if member is None or listener is None or owner is not listener or claim.service != listener.number:
            raise NegotiationError(Code.TICKET_UNKNOWN)
        if not proved and not self._proves(claim):
            raise NegotiationError(
                Code.PROTOCOL_VIOLATION, "the claim does not come from the ticket's holder"
            )
        try:
            pipe: SwitchablePipe = member.connect(
                peer_token=claim.token,
                ring_addr=claim.ring_addr,
                rkey=claim.rkey,
                ring_bytes=claim.ring_bytes,
                recv_bytes=0,
            )
        except MemoryLimitError as error:
            raise NegotiationError(error.code, str(error)) from error
        self._take(claim.ticket)
        self._group.enter(member)
        member.pipe.greet()
        self._grant(listener)
        return pipe

    def on_message(self, message: llcown.Ticket | llcown.TicketBack) -> None:
        """:raises RemoteProtocolError: only a server may send this."""
        if isinstance(message, llcown.Ticket) or message.response or not message.number:
            raise RemoteProtocolError(
                "a client spoke of tickets as only a server may", Code.PROTOCOL_VIOLATION
            )
        back = message.number in self._out
        if back:
            member, listener = self._take(message.number)
            self._level[listener.number] = 0
            member.withdraw(used=message.used)
        claimed = not back and message.number <= self._last
        answer = message.changed(response=True, used=False, bound=claimed)
        self._group.queue_llc(answer.encode())

    def recall(self, listener: GrantingListener) -> None:
        """Ask the client to return the grants of a closed listener."""
        self._level.pop(listener.number, None)
        if any(owner is listener for _, owner in self._out.values()) and self._group.active:
            self._group.queue_llc(llcown.TicketBack(service=listener.number).encode())

    def look(self, now: float) -> None:
        """Called by the engine's timer. Does nothing: the client enforces the time limits."""

    def drop(self) -> None:
        """The link is gone, so no client can write any more."""
        while self._out:
            member, _ = self._take(next(iter(self._out)))
            member.withdraw(used=True)


# ---- client


class EarlyOpen:
    """A connection that began with a ticket, for as long as its member lives."""

    def __init__(
        self, holder: RingHolder, member: MemberView, grant: llcown.Ticket, now: float, limit_ms: int
    ) -> None:
        self._holder, self._member, self._limit_ms = holder, member, limit_ms
        self.grant, self.deadline = grant, now + limit_ms / 1000
        self._splitter: clcstream.Splitter | None = None
        self._asked = False

    @property
    def bound(self) -> bool:
        """True once the server has accepted the connection."""
        received: int = self._member.pipe.statistics().cdcs_received
        return received > 0

    def explain(self, data: bytes) -> str:
        """Describe bytes received on the TCP connection, where only a refusal is valid."""
        if self._splitter is None:
            self._splitter = clcstream.Splitter()
        try:
            for message in self._splitter.feed(data):
                if isinstance(message, clc.Decline):
                    return f"the server refused the connection: {message.text}"
        except RemoteProtocolError:
            pass
        return (
            f"{len(data)} unexpected bytes on the TCP connection: what listens there now is not the "
            "server that gave the ticket for this stream"
        )

    def tcp_lost(self) -> None:
        """The TCP connection has ended; the stream is broken."""
        if not self.bound and not self._asked:
            self._asked = True
            self._holder.forget(self.grant.service)
            self._holder.return_grant(self.grant, used=True)

    def look(self, now: float) -> None:
        """Break the stream if the time limit has passed."""
        if not self.bound and not self._asked and now >= self.deadline:
            self._member.lose_tcp(f"the server did not take the connection within {self._limit_ms} ms")

    def on_answer(self, *, bound: bool) -> None:
        """Process the server's answer. Without a connection, it never wrote to the ring and never will."""
        if not bound:
            self._member.pipe.stand_alone()

    def over(self) -> None:
        """The member is finished."""
        self._holder.early_opens.pop(self.grant.number, None)


class RingHolder:
    """The client's end: unused grants of one link, and the connections that began on used ones."""

    def __init__(self, group: GroupView, grants: Grants) -> None:
        self._group, self._grants = group, grants
        self._engine_id = group.engine.id_towards(group.key.host)
        self.early_opens: dict[int, EarlyOpen] = {}
        self._unused: dict[int, deque[llcown.Ticket]] = {}
        self._used_at: dict[int, float] = {}
        self._addresses: dict[int, str] = {}

    def __len__(self) -> int:
        return sum(map(len, self._unused.values()))

    def now(self) -> float:
        """The time of the engine's loop."""
        return self._group.engine.waker.now()

    @property
    def ring_bytes(self) -> int:
        """Memory reserved at this end: none, as a ring is allocated only when a connection begins."""
        return 0

    held_bytes = ring_bytes

    def learn(self, accept: clc.Accept, peer: str) -> None:
        """The server's listener may grant rings.

        :param peer: the address that this end connected to. Behind a forwarded port, the server's own address
            differs, and the next connection to the forwarded one may reach another server.
        """
        if accept.service and _shown(accept.service_address, accept.service_port) == peer:
            self._unused.setdefault(accept.service, deque())
            self._used_at[accept.service] = self.now()
            self._addresses[accept.service] = peer
            self._grants.servers[peer, self._group.key.traffic_class] = self, accept.service

    def forget(self, service: int) -> None:
        """Begin no more connections to this listener."""
        address = self._addresses.pop(service, ""), self._group.key.traffic_class
        if self._grants.servers.get(address) == (self, service):
            del self._grants.servers[address]
        for grant in self._unused.pop(service, ()):
            self.return_grant(grant, used=False)

    def open(self, service: int, sock: socket.socket) -> SwitchablePipe | None:
        """Begin a connection on a new TCP connection; None if it must be negotiated in full. Takes ownership
        of the socket only on success."""
        unused = self._unused.get(service)
        if not unused or not self._group.active:
            return None
        engine = self._group.engine
        try:
            member = self._group.join()
        except MemoryLimitError:
            return None  # the negotiation runs into the same limit and reports it
        grant = unused.popleft()
        try:
            ring = member.ring
            fields = grant.number, service, member.pipe.token, ring.rkey, ring.address, ring.length
            claim = clc.Claim(
                engine_id=self._engine_id,
                ticket=grant.number,
                service=service,
                token=member.pipe.token,
                rkey=ring.rkey,
                ring_addr=ring.address,
                ring_bytes=ring.length,
                traffic_class=self._group.key.traffic_class,
                proof=claim_proof(fields, self._engine_id, self._group.secret),
            )
            member.connect(
                peer_token=grant.token,
                ring_addr=grant.ring_addr,
                rkey=grant.rkey,
                ring_bytes=grant.ring_bytes,
                recv_bytes=0,
            )
            data = claim.encode()
            if sock.send(data) != len(data):
                raise BlockingIOError
        except (OSError, MemoryLimitError) as error:
            _log.debug("no claim could be sent to %s: %s", self._group.peer, error)
            member.discard()
            self.return_grant(grant, used=False)
            return None
        self._used_at[service] = now = engine.waker.now()
        early_open = EarlyOpen(self, member, grant, now, engine.config.negotiate_timeout_ms)
        self.early_opens[grant.number] = member.early_open = early_open
        member.attach_tcp(sock)
        pipe: SwitchablePipe = member.connection
        return pipe

    def return_grant(self, grant: llcown.Ticket, *, used: bool) -> None:
        """Inform the server that this end will not use the grant for a connection."""
        if self._group.active:
            message = llcown.TicketBack(number=grant.number, service=grant.service, used=used)
            self._group.queue_llc(message.encode())

    def on_message(self, message: llcown.Ticket | llcown.TicketBack) -> None:
        """:raises RemoteProtocolError: the server violated the protocol."""
        if isinstance(message, llcown.Ticket):
            self._on_grant(message)
        elif message.response:
            early_open = self.early_opens.get(message.number)
            if early_open is not None:
                early_open.on_answer(bound=message.bound)
        elif message.number:
            raise RemoteProtocolError("a server gave a ticket back", Code.PROTOCOL_VIOLATION)
        else:
            self.forget(message.service)

    def _on_grant(self, grant: llcown.Ticket) -> None:
        unused = self._unused.get(grant.service)
        if unused is None:
            self.return_grant(grant, used=False)
        elif len(self) >= self._group.engine.config.tickets:
            raise RemoteProtocolError("more tickets than were asked for", Code.PROTOCOL_VIOLATION)
        elif grant.number in self.early_opens or any(grant.number == other.number for other in unused):
            raise RemoteProtocolError(f"ticket {grant.number} came twice", Code.PROTOCOL_VIOLATION)
        else:
            unused.append(grant)

    def look(self, now: float) -> None:
        """Called by the engine's timer: return grants that were unused for a while, and break connections
        that the server did not accept in time."""
        idle = self._group.engine.config.ticket_idle_ms / 1000
        for service, used_at in list(self._used_at.items()):
            unused = self._unused.get(service)
            if unused and now - used_at >= idle:
                while unused:
                    self.return_grant(unused.popleft(), used=False)
        for early_open in list(self.early_opens.values()):
            if now >= early_open.deadline and not early_open.bound:
                # The loop may be late, and the server's first message here.
                self._group.engine.poller.drain()
            if early_open.bound:
                early_open.over()
            else:
                early_open.look(now)

    def drop(self) -> None:
        """The link is gone."""
        for service in list(self._unused):
            self._unused[service].clear()
            self.forget(service)
