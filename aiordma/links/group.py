"""A link group: all connections between two engines, on the links (today: one) between them.

A :class:`LinkKey` identifies the group: the peer's engine, and which side asked. The first connection makes
the group (first contact); all others join it with a ring each and no QP. Its memory with remote access is
never used for another group, so the rkeys that a peer knows open only that peer's memory.
"""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ..errors import Code, LinkError, RemoteProtocolError
from ..pipes._ring import RingPipe
from ..proto.clc import Kind
from ..proto.llcown import RingResize, Ticket, TicketBack
from ..verbs.lifetime import release_all
from ..verbs.registrar import DeviceRegistrar
from .contracts import EngineView, LinkKey, LinkState
from .failover.leave import may_fail_over
from .link import Link
from .link_memory import LinkMemory
from .member import ChannelMember, DatagramMember, Member
from .message_memory import MessageMemory
from .pregranted import Grants, RingGranter, RingHolder
from .ring_size import first_ring_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ..verbs.abi import Access
    from ..verbs.memory.arena import Arena, Block
    from ..wake.base import Waiter
    from .link import LinkParts

logger = logging.getLogger("aiordma.link")

#: Time in which a peer answers Delete Link.
_DELETE_LINK_SECONDS = 2.0
#: Members that the timer looks at in one turn: with thousands of them, the loop must not stand still.
_LOOKS = 1000
#: After so many looks, so far apart, a first contact stalls. Not by time alone: in a busy loop each step
#: of it waits for a turn.
_LOOKS_AT_SET_UP, _LOOK_AT_SET_UP_SECONDS = 20, 0.0125
#: A server ends a link that was unused for so many times as long as the client would keep it, and for twice
#: as many if the client holds tickets.
_SERVER_WAITS = 4
_MEMBERS: dict[int, type[Member]] = {
    Kind.STREAM: Member,
    Kind.DATAGRAMS: DatagramMember,
    Kind.CALLS: ChannelMember,
    Kind.MEMORY: ChannelMember,
}


class GroupOwner(EngineView, Protocol):
    """The engine, as its link groups see it."""

    @property
    def grants(self) -> Grants: ...
    def take_parts(self) -> LinkParts:
        """:raises NegotiationError: too many links."""

    def return_parts(self, parts: LinkParts, *, reusable: bool) -> None: ...
    def add_group(self, group: LinkGroup) -> None:
        """New connections may join this group from now on."""

    def unlist_group(self, group: LinkGroup) -> None:
        """New connections may not join this group any more."""

    def remove_group(self, group: LinkGroup) -> None:
        """The group is closed."""

    def path_failed(self, peer: str, why: str) -> None:
        """A link to ``peer`` has failed, or did not come up."""

    def ack_owed(self, link: Link) -> None:
        """A link has received a message that it has not acknowledged yet."""

    @property
    def several_devices(self) -> bool: ...


class LinkGroup:
    """Connections to one peer that share a link."""

    _LINK: ClassVar[type[Link]] = Link
    #: Rights of the peer in its rings; None: the usual ones.
    _RINGS: ClassVar[Access | None] = None

    def __init__(self, engine: GroupOwner, key: LinkKey, peer: str) -> None:
        self.engine, self.key, self.peer = engine, key, peer
        self.members: set[Member] = set()
        self._ready_waiters: list[Waiter] = []
        self.since = self.idle_since = engine.waker.now()
        #: How often the set-up was looked at: connections that may join wait for one that goes on.
        self._looks = 0
        #: This end's last Accepts and Confirms for it, and the settings that they were made by.
        self.answers: dict[tuple[Any, ...], tuple[Any, Any]] = {}
        #: Proves that a new connection comes from the other end (proto/proof.py, link_secret).
        self.secret = b""
        #: Pre-granted rings: the client holds them, the server grants them.
        self.holder: RingHolder | None = None
        self.granter: RingGranter | None = None
        self.pregranted: RingHolder | RingGranter = self._new_pregranted()
        #: Links that the peer can have with us, as far as is known (2: several).
        self.peer_links = 1
        #: Streams that came here from a link that failed.
        self.moved_here = 0
        self._closed = False
        self._retired_at: float | None = None
        parts = self._take_parts()
        try:
            self.link: Link = self._LINK(
                engine,
                parts,
                key,
                peer,
                on_failed=self._on_link_failed,
                in_use=self._in_use,
                on_group_message=self._on_message,
                on_ack_owed=engine.ack_owed,
            )
        except BaseException:
            parts.close()
            raise
        self.rings: Arena = engine.pool.arena(
            DeviceRegistrar(engine.backend, parts.pd, remote=True, access=self._RINGS),
            first_slab_bytes=first_ring_bytes(engine.config, engine.pool) * 2,
        )
        #: Members that the timer has not looked at in this round.
        self._to_look_at: Iterator[Member] = iter(())
        self._messages: MessageMemory | None = None
        self._link_memory: LinkMemory | None = None
        self._page: Block | None = None
        self._page_arena: Arena | None = None
        engine.add_group(self)
        if key.side == "server":
            self._look_at_set_up()

    def _take_parts(self) -> LinkParts:
        return self.engine.take_parts()

    def _new_pregranted(self) -> RingHolder | RingGranter:
        if self.key.side == "client":
            self.holder = RingHolder(self, self.engine.grants)
            return self.holder
        self.granter = RingGranter(self, self.engine.grants)
        return self.granter

    @property
    def qp_num(self) -> int:
        return self.link.qp_num

    def queue_llc(self, message: bytes) -> int:
        """Send a link control message, as soon as there is credit; its number (``Link.llc_waits``)."""
        return self.link.queue_llc(message)

    @property
    def active(self) -> bool:
        return self.link.state is LinkState.ACTIVE

    @property
    def messages(self) -> MessageMemory:
        """Memory for large messages, made for the first channel."""
        if self._messages is None:
            self._messages = MessageMemory(self.engine, self.link.parts, lambda: self.link_memory, self.peer)
        return self._messages

    @property
    def link_memory(self) -> LinkMemory:
        """Users' memory on this link, made for the first one that asks."""
        if self._link_memory is None:
            self._link_memory = LinkMemory(self.engine, self.link, self.messages)
        return self._link_memory

    @property
    def page(self) -> Block:
        """Memory that the peer may write and this end never reads: the target of the keepalive of a link
        without rings. :raises MemoryLimitError:"""
        if self._page is None:
            if self._page_arena is None:
                # Of its own: a slab of rings would be held for this page alone.
                registrar = DeviceRegistrar(self.engine.backend, self.link.parts.pd, remote=True)
                self._page_arena = self.engine.pool.arena(registrar, first_slab_bytes=4096)
            self._page = self._page_arena.allocate(4096)
        return self._page

    def free_page(self) -> None:
        if self._page is not None:
            self._page.free(0)
            self._page = None

    def look(self, now: float) -> None:
        """Called by the engine's timer."""
        self.pregranted.look(now)
        if self._messages is not None:
            self._messages.look()
        some = list(itertools.islice(self._to_look_at, _LOOKS))
        if not some:
            self._to_look_at = iter(tuple(self.members))
            some = list(itertools.islice(self._to_look_at, _LOOKS))
        for member in some:
            if member in self.members:
                member.look(now)

    @property
    def setting_up(self) -> bool:
        return self.link.state is LinkState.SETTING_UP

    @property
    def streams_go_on(self) -> bool:
        """Whether streams may fail over to TCP: this side did not close the link."""
        return not self._closed and not self.engine.closed and self.engine.config.failover_timeout_ms > 0

    def _in_use(self) -> bool:
        # Before the TCP connection is attached the user does not have the connection; a failure is reported
        # by its negotiation.
        return any(
            (member.carrier is not None or member.exchange is not None) and member.needs_link
            for member in self.members
        )

    def _look_at_set_up(self) -> None:
        if self._looks < _LOOKS_AT_SET_UP and self.setting_up and not self._closed:
            self._looks += 1
            waker = self.engine.waker
            waker.call_at(waker.now() + _LOOK_AT_SET_UP_SECONDS, self._look_at_set_up)
        else:
            self.set_up_ended()  # or it stalls

    @property
    def set_up_stalls(self) -> bool:
        """Whether the set-up takes so long that others should not wait for it."""
        return self.setting_up and self._looks == _LOOKS_AT_SET_UP

    async def wait_ready(self, *, patient: bool = True) -> bool:
        """Wait until the set-up has ended, or (not ``patient``) stalls; whether the group can be used."""
        while self.setting_up and not self._closed and (patient or not self.set_up_stalls):
            waiter = self.engine.waker.new_waiter()
            self._ready_waiters.append(waiter)
            await waiter.wait()
        return self.active and not self._closed

    def set_up_ended(self) -> None:
        """The link is up, or has failed."""
        waiters, self._ready_waiters = self._ready_waiters, []
        for waiter in waiters:
            waiter.set()

    def join(self, kind: int = 0) -> Member:
        """What one more connection needs (``Proposal.kind``). :raises MemoryLimitError: no memory."""
        member = _MEMBERS[kind](self)
        self.enter(member)
        return member

    def prepare(self) -> Member:
        """As :meth:`join`, for a stream that the peer may begin later; it counts from :meth:`enter` on."""
        member = Member(self)
        try:
            member.reserve_mirror()
        except BaseException:
            member.withdraw(used=False)
            raise
        return member

    def enter(self, member: Member) -> None:
        """Count a connection from now on."""
        self.members.add(member)

    def left(self, member: Member) -> None:
        self.members.discard(member)
        if not self.members:
            self.idle_since = self.engine.waker.now()
            if not self.active and not self.setting_up:
                self.close()

    def _on_message(self, message: Ticket | TicketBack | RingResize) -> None:
        """:raises RemoteProtocolError: it cannot be."""
        if not isinstance(message, RingResize):
            self.pregranted.on_message(message)
            return
        flow = self.link.queue_pair.flow_of(message.token)
        # None: the stream is over at this end, and the message crossed its last one.
        if isinstance(flow, RingPipe):
            member: Any = flow.owner
            if member.ring_size is not None:
                member.ring_size.on_message(message)
                return
        if flow is not None:
            raise RemoteProtocolError("a ring was to be replaced that never is", Code.PROTOCOL_VIOLATION)

    @property
    def has_another(self) -> bool:
        """Whether this end looks for another link to the peer when this one fails: the client does, where
        one end has several devices."""
        return self.key.side == "client" and (self.engine.several_devices or self.peer_links > 1)

    def _on_link_failed(self, reason: BaseException) -> None:
        if may_fail_over(reason) and not self._closed and not self.link.orderly:
            self.engine.path_failed(self.peer, str(reason))
        self.engine.unlist_group(self)
        self.pregranted.drop()
        self.set_up_ended()
        if not self.members:
            self.close()

    def was_unused(self, now: float, patience: float, asked: Collection[str]) -> bool:
        """Whether this end may retire it: new connections could join, and have not for so long.

        The client's side does it, because it begins the connections and so does not close a link that one is
        joining. It waits while a negotiation with that host is under way, because the server may answer that
        the new connection joins an idle link. A client that keeps its idle links is ended by the server much
        later, when it has returned its tickets: all that it can do by then is to negotiate, and it gets a new
        link.

        :param asked: hosts with which this end negotiates as a client; empty: one that is not known.
        """
        unused = now - self.idle_since
        if self.key.side == "client":
            return unused >= patience and "" not in asked and self.key.host not in asked
        return unused >= patience * _SERVER_WAITS * (2 if len(self.pregranted) else 1)

    def retire(self, now: float) -> None:
        """Announce the end of an unused group (Delete Link) and let no connection join. It closes when the
        peer has answered or had time to; until then the message is under way and the QP must stay."""
        if self.active and not self.members and self._retired_at is None:
            self._retired_at = now
            self.pregranted.drop()
            self.engine.unlist_group(self)
            self.link.announce_end()

    def give_up(self) -> None:
        """Let no connection join: a client claims that the peer does not know the link. That claim is not
        authenticated, so connections stay, and a probe finds out whether it is true."""
        self.engine.unlist_group(self)
        self.link.suspect()

    @property
    def retired(self) -> bool:
        """Whether its end was announced: no connection may join."""
        return self._retired_at is not None

    def may_close_at(self, now: float) -> bool:
        """Whether it was retired and the peer did not answer in time."""
        return self._retired_at is not None and now - self._retired_at >= _DELETE_LINK_SECONDS

    def statistics(self) -> dict[str, Any]:
        return {
            **self.link.statistics(),
            "side": self.key.side,
            "traffic_class": self.key.traffic_class,
            "connections": len(self.members),
            "moved_here": self.moved_here,
            "tickets": len(self.pregranted),
            "ticket_ring_bytes": self.pregranted.ring_bytes,
        }

    def close(self) -> None:
        """Take the link down. Members that are left are broken first."""
        if self._closed:
            return
        self._closed = True
        self.engine.remove_group(self)
        reusable = False

        def silence() -> None:
            nonlocal reusable
            reusable = self.link.parts.silence()

        # In this order: the QP leaves the network, then its memory goes, then the protection domain may.
        release_all(
            f"link to {self.peer}",
            self.link.announce_end,
            lambda: self.link.queue_pair.break_link(LinkError("closed by this side")),
            *(member.abort for member in self.members),
            self.link.close,
            self.set_up_ended,
            silence,
            *(() if self._link_memory is None else (self._link_memory.close,)),
            self.free_page,
            *(() if self._messages is None else (self._messages.close,)),
            self.rings.close,
            *(() if self._page_arena is None else (self._page_arena.close,)),
            lambda: self.engine.return_parts(self.link.parts, reusable=reusable),
        )
