"""Streams that begin without waiting for an answer: rings that a server hands out in advance.

Whatever waits for the server's process takes as long as waking it. So a server that sees a client open one
connection after the other gives it *tickets* over their link: rings, allocated and registered for this
client, for one listener (:class:`Service`). A connect to that address makes its TCP connection, which the
kernel completes, sends one Claim on it, and is done; what is sent goes into the ring at once. The server
finds the Claim when it accepts the connection, and its stream begins with what is in the ring.

The client decides about tickets and the server about connections: nothing is ever used that was taken back.

* a ticket belongs to the client until the client has used it or said that it will not (Ticket Back); what the
  server takes back (a closed listener), it asks for;
* until the server's first word on the link, nobody at the client knows whether the server has taken the
  connection. If the TCP connection ends before that, or the claim is refused, or nothing comes in time, the
  stream is broken, and the client asks over the link (Ticket Back again). The answer settles whether the ring
  may go: the server never wrote and never will, or there is a connection that ends like any other.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import logging
from collections import deque
from typing import TYPE_CHECKING

from ..addresses import show
from ..errors import Code, NegotiationError, RemoteProtocolError
from ..proto import clc, clcstream, llc
from ..proto.proof import claim_proof
from ..verbs.memory import MemoryLimitError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from ..addresses import Address
    from ..pipes._switchable import SwitchablePipe
    from .devices import Devices
    from .group import LinkGroup
    from .member import Member

__all__ = ["Holder", "Issuer", "Opening", "Service"]

_log = logging.getLogger("aiordma.link")


def _packed(address: Address) -> tuple[bytes, int]:
    """An address as a CLC Accept carries it."""
    ip = ipaddress.ip_address(address[0].partition("%")[0])
    return (ip if ip.version == 6 else ipaddress.IPv6Address(f"::ffff:{ip}")).packed, address[1]


def _shown(packed: bytes, port: int) -> str:
    ip = ipaddress.IPv6Address(packed)
    return show((str(ip.ipv4_mapped or ip), port))


# ---- server


class Service:
    """A listener that hands out tickets. Made by ``Engine.open_service``.

    :param has_room: whether it would take one more connection now.
    """

    def __init__(self, devices: Devices, number: int, has_room: Callable[[], bool]) -> None:
        self.devices, self.number, self.has_room = devices, number, has_room

    def fields(self, local: Address) -> dict[str, object]:
        """What an Accept says of it.

        :param local: the server's address of the connection.
        """
        host, port = _packed(local)
        return {"service": self.number, "service_address": host, "service_port": port}

    def close(self) -> None:
        """The listener is gone: ask for the tickets that are out. Idempotent."""
        if self.devices.services.pop(self.number, None) is not None:
            for group in [group for engine in self.devices.engines for group in engine.all_groups]:
                if isinstance(group.tickets, Issuer):
                    group.tickets.recall(self)


class Issuer:
    """The server's end: tickets of one link that are out."""

    def __init__(self, group: LinkGroup) -> None:
        self.group = group
        #: What the client takes (Proposal), of all listeners together.
        self.limit = 0
        self._out: dict[int, tuple[Member, Service]] = {}
        self._last = 0
        # Tickets that a listener keeps with this client: none until it comes again, more while it runs out.
        self._level: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._out)

    @property
    def ring_bytes(self) -> int:
        """Memory of the rings that are out."""
        return sum(member.ring.length for member, _ in self._out.values())

    def asked(self, service: Service, *, first: bool) -> None:
        """The client has made a connection in full.

        :param first: its first one: most clients have no other.
        """
        if not first:
            level = self._level.get(service.number, 0)
            self._level[service.number] = min(max(1, 2 * level), self.limit)
            self._issue(service)

    def _issue(self, service: Service) -> None:
        engine, queue_pair = self.group.engine, self.group.link.queue_pair
        mine = sum(1 for _, owner in self._out.values() if owner is service)
        while (
            mine < self._level.get(service.number, 0)
            and len(self._out) < self.limit
            and service.number in engine.services
            and service.has_room()
            and self.group.active
            and engine.pool.has_spare(engine.config.ring_bytes)
        ):
            try:
                member = self.group.prepare()
            except MemoryLimitError:
                return
            mine += 1
            self._last = self._last % 0xFFFFFFFF + 1
            self._out[self._last] = member, service
            ticket = llc.Ticket(
                number=self._last,
                service=service.number,
                token=member.pipe.token,
                rkey=member.ring.rkey,
                ring_addr=member.ring.address,
                ring_bytes=member.ring.length,
            )
            queue_pair.say(ticket.encode())

    def gave(self, claim: clc.Claim) -> bool:
        """Whether the claim is of a ticket that is out, by the client of this link."""
        proof = claim_proof(claim.fields, claim.engine_id, self.group.secret)
        return claim.ticket in self._out and claim.proof == proof

    def claim(self, claim: clc.Claim, service: Service | None) -> SwitchablePipe:
        """The connection of a Claim.

        :param service: the listener that accepted its TCP connection.
        :raises NegotiationError: there is no such ticket, or it is not the client's.
        """
        member, owner = self._out.get(claim.ticket, (None, None))
        if member is None or service is None or owner is not service or claim.service != service.number:
            raise NegotiationError(Code.TICKET_UNKNOWN)
        if claim.proof != claim_proof(claim.fields, claim.engine_id, self.group.secret):
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
            raise NegotiationError(Code.OUT_OF_MEMORY, str(error)) from error
        del self._out[claim.ticket]
        self.group.enter(member)
        member.pipe.greet()
        self._issue(service)
        return pipe

    def on_message(self, message: llc.Ticket | llc.TicketBack) -> None:
        """:raises RemoteProtocolError: the client says what only a server may."""
        if isinstance(message, llc.Ticket) or message.response or not message.number:
            raise RemoteProtocolError(
                "a client spoke of tickets as only a server may", Code.PROTOCOL_VIOLATION
            )
        member, service = self._out.pop(message.number, (None, None))
        if member is not None and service is not None:
            self._level[service.number] = 0
            member.withdraw(used=message.used)
        claimed = member is None and message.number <= self._last
        answer = dataclasses.replace(message, response=True, used=False, bound=claimed)
        self.group.link.queue_pair.say(answer.encode())

    def recall(self, service: Service) -> None:
        """Ask for the tickets of a listener that is gone."""
        self._level.pop(service.number, None)
        if any(owner is service for _, owner in self._out.values()) and self.group.active:
            self.group.link.queue_pair.say(llc.TicketBack(service=service.number).encode())

    def look(self, now: float) -> None:
        """Nothing to do: the client keeps the time."""

    def drop(self) -> None:
        """The link is gone, and with it whoever could write."""
        while self._out:
            _, (member, _service) = self._out.popitem()
            member.withdraw(used=True)


# ---- client


class Opening:
    """A connection that was begun with a ticket, for as long as its member lives."""

    def __init__(self, holder: Holder, member: Member, ticket: llc.Ticket, deadline: float) -> None:
        self._holder, self._member = holder, member
        self.ticket, self.deadline = ticket, deadline
        self._splitter = clcstream.Splitter()
        self._asked = False

    @property
    def bound(self) -> bool:
        """Whether the server has taken the connection."""
        received: int = self._member.pipe.statistics().cdcs_received
        return received > 0

    def explain(self, data: bytes) -> str:
        """What bytes on the TCP connection mean: nothing but a refusal may come there."""
        try:
            for message in self._splitter.feed(data):
                if isinstance(message, clc.Decline):
                    return f"the server refused the connection: {message.text}"
        except RemoteProtocolError:
            pass
        return (
            f"{len(data)} unexpected bytes on the TCP connection: whoever listens there now is not the "
            "server that gave the ticket for this stream"
        )

    def tcp_lost(self) -> None:
        """The TCP connection has ended; the stream is broken."""
        if not self.bound and not self._asked:
            self._asked = True
            self._holder.forget(self.ticket.service)
            self._holder.say_back(self.ticket, used=True)

    def look(self, now: float) -> None:
        """Nothing came in time?"""
        if not self.bound and not self._asked and now >= self.deadline:
            milliseconds = self._holder.group.engine.config.negotiate_timeout_ms
            self._member.lose_tcp(f"the server did not take the connection within {milliseconds} ms")

    def settled(self, *, bound: bool) -> None:
        """The server's answer. Without a connection there it never wrote, and never will."""
        if not bound:
            self._member.pipe.stand_alone()

    def over(self) -> None:
        """The member is finished."""
        self._holder.openings.pop(self.ticket.number, None)


class Holder:
    """The client's end: tickets of one link that are not used yet, and connections begun with others."""

    def __init__(self, group: LinkGroup) -> None:
        self.group = group
        self.openings: dict[int, Opening] = {}
        self._unused: dict[int, deque[llc.Ticket]] = {}
        self._used_at: dict[int, float] = {}
        self._addresses: dict[int, str] = {}

    def __len__(self) -> int:
        return sum(map(len, self._unused.values()))

    @property
    def ring_bytes(self) -> int:
        """Memory of this end that waits for its connection: none, rings are allocated when one begins."""
        return 0

    def learn(self, accept: clc.Accept, peer: str) -> None:
        """The server's listener may send tickets.

        :param peer: the address that the connection was made to; behind a translator it is another than the
            server's own, and other servers may answer there, too.
        """
        if accept.service and _shown(accept.service_address, accept.service_port) == peer:
            self._unused.setdefault(accept.service, deque())
            self._used_at[accept.service] = self.group.engine.waker.now()
            self._addresses[accept.service] = peer
            self.group.engine.open_to[peer, self.group.key.traffic_class] = self.group, accept.service

    def forget(self, service: int) -> None:
        """Begin nothing more with this listener's tickets."""
        open_to = self.group.engine.open_to
        address = self._addresses.pop(service, ""), self.group.key.traffic_class
        if open_to.get(address) == (self.group, service):
            del open_to[address]
        for ticket in self._unused.pop(service, ()):
            self.say_back(ticket, used=False)

    def open(self, service: int, sock: socket.socket) -> SwitchablePipe | None:
        """Begin a connection on a fresh TCP connection; None when it must be negotiated in full. Takes the
        socket only with success."""
        tickets = self._unused.get(service)
        if not tickets or not self.group.active:
            return None
        engine = self.group.engine
        try:
            member = self.group.join()
        except MemoryLimitError:
            return None  # the negotiation finds out as well, and says so
        ticket = tickets.popleft()
        try:
            ring = member.ring
            fields = ticket.number, service, member.pipe.token, ring.rkey, ring.address, ring.length
            claim = clc.Claim(
                engine_id=engine.engine_id,
                ticket=ticket.number,
                service=service,
                token=member.pipe.token,
                rkey=ring.rkey,
                ring_addr=ring.address,
                ring_bytes=ring.length,
                traffic_class=self.group.key.traffic_class,
                proof=claim_proof(fields, engine.engine_id, self.group.secret),
            )
            member.connect(
                peer_token=ticket.token,
                ring_addr=ticket.ring_addr,
                rkey=ticket.rkey,
                ring_bytes=ticket.ring_bytes,
                recv_bytes=0,
            )
            data = claim.encode()
            if sock.send(data) != len(data):
                raise BlockingIOError
        except (OSError, MemoryLimitError) as error:
            _log.debug("no claim could be sent to %s: %s", self.group.peer, error)
            member.discard()
            self.say_back(ticket, used=False)
            return None
        now = engine.waker.now()
        self._used_at[service] = now
        deadline = now + engine.config.negotiate_timeout_ms / 1000
        self.openings[ticket.number] = member.opening = Opening(self, member, ticket, deadline)
        member.attach_tcp(sock)
        pipe: SwitchablePipe = member.connection
        return pipe

    def say_back(self, ticket: llc.Ticket, *, used: bool) -> None:
        """Tell the server that nothing more comes of a ticket."""
        if self.group.active:
            message = llc.TicketBack(number=ticket.number, service=ticket.service, used=used)
            self.group.link.queue_pair.say(message.encode())

    def on_message(self, message: llc.Ticket | llc.TicketBack) -> None:
        """:raises RemoteProtocolError: the server breaks the rules."""
        if isinstance(message, llc.Ticket):
            self._on_ticket(message)
        elif message.response:
            opening = self.openings.get(message.number)
            if opening is not None:
                opening.settled(bound=message.bound)
        elif message.number:
            raise RemoteProtocolError("a server gave a ticket back", Code.PROTOCOL_VIOLATION)
        else:
            self.forget(message.service)

    def _on_ticket(self, ticket: llc.Ticket) -> None:
        tickets = self._unused.get(ticket.service)
        if tickets is None:
            self.say_back(ticket, used=False)
        elif len(self) >= self.group.engine.config.tickets:
            raise RemoteProtocolError("more tickets than were asked for", Code.PROTOCOL_VIOLATION)
        elif ticket.number in self.openings or any(ticket.number == other.number for other in tickets):
            raise RemoteProtocolError(f"ticket {ticket.number} came twice", Code.PROTOCOL_VIOLATION)
        else:
            tickets.append(ticket)

    def look(self, now: float) -> None:
        """Give back what nobody has needed for a while; break what nobody has taken."""
        for service, used_at in list(self._used_at.items()):
            tickets = self._unused.get(service)
            if tickets and now - used_at >= self.group.engine.config.ticket_idle_ms / 1000:
                while tickets:
                    self.say_back(tickets.popleft(), used=False)
        for opening in list(self.openings.values()):
            if opening.bound:
                opening.over()
            else:
                opening.look(now)

    def drop(self) -> None:
        """The link is gone."""
        for service in list(self._unused):
            self._unused[service].clear()
            self.forget(service)
