"""The negotiation with a Linux kernel's SMC-R: link groups, and one connection from Proposal to use, in both
roles (SMC-Rv2.0 and v2.1; facts as of Linux 6.1 and 6.12).

The messages and the order of them are those of ``handshake.py``. What differs from two ends of aiordma: no
block of aiordma's own, nothing that proves who the peer is, limits that the second answer must repeat, and
link groups that each end finds by what is in the messages. A peer is believed what it says of its own ring
and queue pair, and nothing else, so an owner must give each group a protection domain of its own.

No I/O here, and time is an argument: :class:`SmcrClient` and :class:`SmcrServer` take bytes of the TCP
connection and results of the owner's work, and return events: those of ``events.py``, and :class:`MakeReady`.
"""

from __future__ import annotations

from typing import TypeAlias

from .clc import EID, Accept, Confirm, Proposal
from .codes import Code
from .errors import LocalProtocolError, RemoteProtocolError
from .events import Accepted, Confirmed, Event, Proposed, UseTcp
from .frozen import Frozen
from .handshake import ClientHandshake, ServerHandshake, State, Timeouts
from .smcr_link import LinkEnd, LinkState, LinkTimes, SmcrLink

MIN_CONNS = 16
"""Linux refuses an end that allows fewer connections on a link group."""
_NEWEST_RELEASE = 1


class Port(Frozen, kw_only=True):
    """This end, as its peers see it."""

    gid: bytes
    """RoCEv2 GID; Linux speaks SMC-Rv2 on IPv4 only."""
    mac: bytes
    """MAC address of the port: Linux sends to it."""
    system_id: bytes
    """8 bytes by which peers find their link group with this end: 2 random ones for each process, and a MAC
    address. With those of a process that was killed, a peer would take up its dead link."""
    mtu: int
    """Path MTU as ``ibv_mtu``."""
    eids: tuple[bytes, ...] = (EID,)
    """Enterprise ids, 32 bytes each: offered by a client, accepted by a server."""
    any_eid: bool = False
    """A server takes any id that is offered."""
    hostname: str = ""
    """For people at the other end."""
    max_conns: int = 255
    """Connections on one link group, from 16 to 255."""

    def proposal(self) -> Proposal:
        """What a client of this port sends. It allows one link only: then the peer offers no second one."""
        return Proposal(
            gid=self.gid,
            mac=self.mac,
            system_id=self.system_id,
            eids=self.eids,
            max_conns=self.max_conns,
            max_links=1,
        )


class Ring(Frozen, kw_only=True):
    """This end's ring of a connection."""

    rkey: int
    """Key by which the peer writes into it."""
    rmb_addr: int
    """Address of the memory that it is in."""
    ring_bytes: int
    """Its size."""
    token: int
    """This end's number of the connection, not 0, unique in the link group."""
    rmbe_index: int = 1
    """Its place in that memory, from 1."""


class Queue(Frozen):
    """This end's queue pair of a new link."""

    qpn: int
    """Its number."""
    psn: int
    """Its first packet number."""
    uid: int = 1
    """This end's number of the link."""


class SmcrGroup:
    """A link group: one link to one peer, and the connections on it."""

    def __init__(self, link: SmcrLink, max_conns: int) -> None:
        self.link, self.max_conns = link, max_conns
        #: Alert tokens of this end's connections.
        self.tokens: set[int] = set()

    @property
    def has_room(self) -> bool:
        """Whether a connection may join."""
        return self.link.state is LinkState.ACTIVE and len(self.tokens) < self.max_conns

    def join(self, token: int) -> None:
        """:raises LocalProtocolError: the token has been given to another connection."""
        if token in self.tokens:
            raise LocalProtocolError(f"the token {token} belongs to another connection of this link")
        self.tokens.add(token)

    def leave(self, token: int) -> None:
        """The connection is over at both ends."""
        self.tokens.discard(token)


class SmcrGroups:
    """The link groups of one port, found as Linux finds its own."""

    def __init__(self) -> None:
        self._groups: list[SmcrGroup] = []

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._groups)

    def add(self, group: SmcrGroup) -> None:
        """A group is being set up."""
        self._groups.append(group)

    def forget(self, group: SmcrGroup) -> None:
        """No connection may join it any more. Idempotent."""
        if group in self._groups:
            self._groups.remove(group)

    def named_by(self, accept: Accept) -> SmcrGroup | None:
        """For a client: the group whose link the server has chosen."""
        named = (group for group in self._of("client", accept.gid) if group.link.peer.qpn == accept.qpn)
        return next(named, None)

    def for_client_at(self, gid: bytes) -> SmcrGroup | None:
        """For a server: one that a connection of this client may join. A kernel without a device for version
        1 says its port only."""
        return next((group for group in self._of("server", gid) if group.has_room), None)

    def _of(self, role: str, gid: bytes) -> list[SmcrGroup]:
        return [
            group
            for group in self._groups
            if (group.link.role, group.link.peer.gid, group.link.state) == (role, gid, LinkState.ACTIVE)
        ]


class MakeReady(Frozen):
    """Provide a ring, and call ``ready()`` or ``refuse()``.

    A client whose group is None connects a new queue pair to ``peer`` before (RTR, receives, RTS). A server
    whose group is None makes one, and connects it when it gets :class:`Confirmed`; it then calls
    ``connected()``.
    """

    peer: Accept | Proposal
    """What the peer has said."""
    group: SmcrGroup | None
    """The link group that the connection joins; None: it gets a new one."""


SmcrEvent: TypeAlias = Event | MakeReady


def _refusal(code: Code, text: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"CLC: {text}", code)


def choose_eid(proposal: Proposal, port: Port) -> bytes:
    """The first of the client's enterprise ids that this server has.

    :raises RemoteProtocolError: there is none, or the client does not speak version 2; with the code to
        decline with.
    """
    if proposal.version < 2:
        raise _refusal(Code.NO_SMC_V2_EXTENSION, "the client speaks version 1 of SMC only")
    for eid in proposal.eids:
        if port.any_eid or eid in port.eids:
            return eid
    raise _refusal(Code.NO_COMMON_EID, "the two ends have no enterprise id in common")


def check_limits(proposal: Proposal) -> None:
    """Whether the client allows as much on a link group as Linux asks for.

    :raises RemoteProtocolError: it does not; with the code to decline with.
    """
    if not proposal.release:
        return  # which knows no limits
    if proposal.max_conns < MIN_CONNS:
        text = f"the client allows {proposal.max_conns} connections on a link group (at least {MIN_CONNS})"
        raise _refusal(Code.MAX_CONNS_MISMATCH, text)
    if not proposal.max_links:
        raise _refusal(Code.MAX_LINKS_MISMATCH, "the client allows no link in a link group")


def check_accept(accept: Accept, proposal: Proposal) -> None:
    """Whether the Accept keeps to the Proposal.

    :raises RemoteProtocolError: it does not; with the code to decline with.
    """
    if accept.eid not in proposal.eids:
        raise _refusal(Code.NO_COMMON_EID, "the server chose an enterprise id that was not offered")
    _check_ring(accept)
    if not accept.first_contact:
        return
    if accept.release > proposal.release:
        raise _refusal(
            Code.RELEASE_MISMATCH, f"the server chose release {accept.release} of {proposal.release}"
        )
    if accept.release and not MIN_CONNS <= accept.max_conns <= proposal.max_conns:
        text = f"{accept.max_conns} connections on a link group ({MIN_CONNS} to {proposal.max_conns})"
        raise _refusal(Code.MAX_CONNS_MISMATCH, text)
    if accept.release and not 1 <= accept.max_links <= proposal.max_links:
        text = f"{accept.max_links} links in a link group (1 to {proposal.max_links})"
        raise _refusal(Code.MAX_LINKS_MISMATCH, text)
    _check_way(accept)


def check_confirm(confirm: Confirm, accept: Accept) -> None:
    """Whether the Confirm repeats what the Accept has fixed.

    :raises RemoteProtocolError: it does not; with the code to decline with.
    """
    _check_ring(confirm)
    if confirm.first_contact != accept.first_contact:
        raise _refusal(Code.OUT_OF_SYNC, "the two ends do not agree whether a new link is made")
    if confirm.eid != accept.eid:
        raise _refusal(Code.NO_COMMON_EID, "the client confirms another enterprise id than was chosen")
    if not accept.first_contact:
        return
    if confirm.release != accept.release:
        text = f"the client confirms release {confirm.release}, {accept.release} was chosen"
        raise _refusal(Code.RELEASE_MISMATCH, text)
    if accept.release and confirm.max_conns != accept.max_conns:
        raise _refusal(Code.MAX_CONNS_MISMATCH, f"the client confirms {confirm.max_conns} connections")
    if accept.release and confirm.max_links != accept.max_links:
        raise _refusal(Code.MAX_LINKS_MISMATCH, f"the client confirms {confirm.max_links} links")
    _check_way(confirm)


def _check_way(answer: Accept | Confirm) -> None:
    if not answer.direct:
        raise _refusal(Code.GATEWAY_MISMATCH, "the peer sends through a gateway, which is not supported")


def _check_ring(answer: Accept | Confirm) -> None:
    if answer.ring_addr + answer.ring_bytes > 1 << 64:
        raise _refusal(Code.PROTOCOL_VIOLATION, f"a ring at 0x{answer.ring_addr:x} has no end")
    if not answer.qpn or answer.gid == bytes(16):
        raise _refusal(Code.PROTOCOL_VIOLATION, "the peer names no queue pair")


class _Contact:
    handshake: ClientHandshake | ServerHandshake

    def __init__(self, role: str, port: Port, groups: SmcrGroups, times: LinkTimes | None) -> None:
        self.role, self.port, self.groups, self._times = role, port, groups, times
        #: The link group of the connection, when that is known and exists.
        self.group: SmcrGroup | None = None
        self._ring: Ring | None = None
        self._queue: Queue | None = None

    @property
    def done(self) -> bool:
        """Whether the end is reached, be it RDMA or TCP."""
        return self.handshake.done

    def next_deadline(self) -> float | None:
        """When :meth:`on_timer` must be called."""
        return self.handshake.next_deadline()

    def receive(self, data: bytes, now: float) -> list[SmcrEvent]:
        """Bytes of the TCP connection."""
        return self._seen(self.handshake.receive(data, now), now)

    def eof(self, now: float) -> list[SmcrEvent]:
        """The peer closed or reset the TCP connection."""
        return self._seen(self.handshake.eof(now), now)

    def on_timer(self, now: float) -> list[SmcrEvent]:
        """The time of :meth:`next_deadline` has come."""
        return self._seen(self.handshake.on_timer(now), now)

    def refuse(self, code: int, now: float) -> list[SmcrEvent]:
        """This end cannot: decline, and go on with TCP."""
        return self._seen(self.handshake.refuse(code, now), now)

    def active(self, now: float) -> list[SmcrEvent]:
        """The new link has reported ``LinkActive``."""
        return [*self.handshake.established(now)]

    def link_ended(self, code: int, text: str, now: float) -> list[SmcrEvent]:
        """The new link has ended before it was active, and the peer may use it: the connection must go."""
        return self._seen(self.handshake.broken(code, text, now), now)

    def _seen(self, events: list[Event], now: float) -> list[SmcrEvent]:
        """Carry out what the handshake asks of this class, and give up the ring's place where it ends."""
        seen: list[SmcrEvent] = []
        for event in events:
            try:
                seen += self._on_event(event, now)
            except RemoteProtocolError as exc:
                seen += self.handshake.refuse(exc.code, now)
        if self.done and self.handshake.state is not State.RDMA:
            self._withdraw(seen)
        return seen

    def _on_event(self, event: Event, now: float) -> list[SmcrEvent]:
        raise NotImplementedError

    def _withdraw(self, events: list[SmcrEvent]) -> None:
        group, ring = self.group, self._ring
        if group is None:
            return
        unknown = any(isinstance(event, UseTcp) and event.peer == Code.LINK_NOT_FOUND for event in events)
        if ring is not None:
            group.leave(ring.token)
        if unknown or group.link.state is LinkState.ACTIVATING:
            self.groups.forget(group)

    # ---- the pieces of both roles

    def _answer_fields(self, peer: Accept | Proposal) -> dict[str, object]:
        port, ring, queue = self.port, self._ring, self._queue
        assert ring is not None
        if queue is None:
            assert self.group is not None
            queue = Queue(self.group.link.own.qpn, 0)
        fields: dict[str, object] = {name: getattr(ring, name) for name in Ring._fields}
        fields |= {"qpn": queue.qpn, "psn": queue.psn, "gid": port.gid, "mac": port.mac}
        mtu = min(port.mtu, peer.mtu) if isinstance(peer, Accept) else port.mtu
        return fields | {"system_id": port.system_id, "mtu": mtu}

    def _prepare(self, ring: Ring, queue: Queue | None) -> None:
        if (queue is None) == (self.group is None):
            raise LocalProtocolError("a queue pair is needed for a new link, and only for that")
        if self.group is not None:
            self.group.join(ring.token)
        self._ring, self._queue = ring, queue

    def _new_group(self, peer: Accept | Confirm, max_conns: int, now: float) -> SmcrGroup:
        assert self._ring is not None
        assert self._queue is not None
        own = LinkEnd(gid=self.port.gid, qpn=self._queue.qpn, mac=self.port.mac, uid=self._queue.uid)
        other = LinkEnd(gid=peer.gid, qpn=peer.qpn, mac=peer.mac)
        group = SmcrGroup(SmcrLink(self.role, own, other, now, self._times), max_conns)
        group.join(self._ring.token)
        self.groups.add(group)
        return group

    def _learn_key(self, peer: Accept | Confirm) -> None:
        assert self.group is not None
        if not self.group.link.add_key(peer.rkey, peer.rmb_addr):
            raise _refusal(Code.INTERNAL_RTOKEN, "the peer has named too many regions")


class SmcrClient(_Contact):
    """The connecting end. The first event comes from :meth:`start`."""

    handshake: ClientHandshake

    def __init__(
        self, port: Port, groups: SmcrGroups, timeouts: Timeouts, now: float, times: LinkTimes | None = None
    ) -> None:
        super().__init__("client", port, groups, times)
        self.proposal = port.proposal()
        self.handshake = ClientHandshake(self.proposal, timeouts, now)
        self.handshake.with_other_smc()
        self.handshake.may_ask_again = False
        self.accept: Accept | None = None

    def start(self) -> list[SmcrEvent]:
        """Send the Proposal."""
        return [*self.handshake.start()]

    def _on_event(self, event: Event, now: float) -> list[SmcrEvent]:
        if not isinstance(event, Accepted):
            return [event]
        accept = event.accept
        check_accept(accept, self.proposal)
        if not accept.first_contact:
            self.group = self.groups.named_by(accept)
            if self.group is None:
                raise _refusal(Code.LINK_NOT_FOUND, Code.LINK_NOT_FOUND.text)
            self._learn_key(accept)
        self.accept = accept
        return [MakeReady(accept, self.group)]

    def ready(self, ring: Ring, queue: Queue | None, now: float) -> list[SmcrEvent]:
        """The ring is there, and the queue pair of a new link is connected.

        :param queue: of a new link; None: the connection joins one.
        """
        accept = self.accept
        if accept is None:
            raise LocalProtocolError("nothing has been accepted yet")
        self._prepare(ring, queue)
        confirm = Confirm(
            **self._answer_fields(accept),  # type: ignore[arg-type]
            first_contact=accept.first_contact,
            eid=accept.eid,
            release=accept.release,
            max_conns=accept.max_conns,
            max_links=accept.max_links if accept.release else 1,
            hostname=self.port.hostname,
            gids=(self.port.gid,) if accept.first_contact else (),
        )
        events = self.handshake.ready(confirm, now)
        if self.group is not None:
            return [*events, *self.handshake.established(now)]
        self.group = self._new_group(accept, accept.max_conns, now)
        self._learn_key(accept)
        return [*events]


class SmcrServer(_Contact):
    """The listening end, of a connection whose SYN had the option.

    Where it fails behind a Confirm, the client does not see that from the TCP connection: the owner tells it
    by a CDC message that gives up the connection with the token of :attr:`confirm`.
    """

    handshake: ServerHandshake

    def __init__(
        self, port: Port, groups: SmcrGroups, timeouts: Timeouts, now: float, times: LinkTimes | None = None
    ) -> None:
        super().__init__("server", port, groups, times)
        self.handshake = ServerHandshake(timeouts, now)
        self.handshake.with_other_smc()
        self.proposal: Proposal | None = None
        self.confirm: Confirm | None = None
        self._accept: Accept | None = None
        self._eid = b""

    def _on_event(self, event: Event, now: float) -> list[SmcrEvent]:
        if isinstance(event, Proposed):
            proposal = event.proposal
            self._eid = choose_eid(proposal, self.port)
            check_limits(proposal)
            self.proposal, self.group = proposal, self.groups.for_client_at(proposal.gid)
            return [MakeReady(proposal, self.group)]
        if isinstance(event, Confirmed):
            return self._on_confirmed(event, now)
        return [event]

    def ready(self, ring: Ring, queue: Queue | None, now: float) -> list[SmcrEvent]:
        """The ring is there, and a queue pair for a new link.

        :param queue: of a new link; None: the connection joins one.
        """
        proposal = self.proposal
        if proposal is None:
            raise LocalProtocolError("nothing has been proposed yet")
        if self.group is not None and not self.group.has_room:
            return self.refuse(Code.NO_ACTIVE_LINK, now)  # it ended meanwhile
        self._prepare(ring, queue)
        first = self.group is None
        accept = Accept(
            **self._answer_fields(proposal),  # type: ignore[arg-type]
            first_contact=first,
            eid=self._eid,
            release=min(_NEWEST_RELEASE, proposal.release) if first else _NEWEST_RELEASE,
            max_conns=min(self.port.max_conns, proposal.max_conns) if first else 255,
            hostname=self.port.hostname if first else "",
        )
        events = self.handshake.ready(accept, now)
        self._accept = accept
        return [*events]

    def _on_confirmed(self, event: Confirmed, now: float) -> list[SmcrEvent]:
        assert self._accept is not None
        self.confirm = event.confirm
        if self.group is None:
            check_confirm(event.confirm, self._accept)
            return [event]  # the owner connects the queue pair
        # On a link that exists, the client uses RDMA once it has sent this: there is no way back to TCP.
        try:
            check_confirm(event.confirm, self._accept)
            if self.group.link.state is not LinkState.ACTIVE:
                raise _refusal(Code.NO_ACTIVE_LINK, Code.NO_ACTIVE_LINK.text)
            self._learn_key(event.confirm)
        except RemoteProtocolError as exc:
            return [*self.handshake.broken(exc.code, str(exc), now)]
        return [event, *self.handshake.established(now)]

    def connected(self, now: float) -> list[SmcrEvent]:
        """The queue pair of the new link is connected to that of the Confirm: its peer is asked now."""
        if self.confirm is None or self._accept is None or self.group is not None:
            raise LocalProtocolError("no new link is to be connected")
        self.group = self._new_group(self.confirm, self._accept.max_conns, now)
        self._learn_key(self.confirm)
        return []
