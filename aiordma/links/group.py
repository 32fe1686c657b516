"""A link group: all connections between two engines, on the links (today: one) between them.

A group is found again by the peer's engine id and by which side asked: the first connection makes it
("first contact"), all others join it with a ring each and no QP. Its memory with remote access is its own
and is never recycled to another group, so the rkeys in a peer's hands open nothing of anybody else's.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ..errors import LinkError
from ..proto.clc import Kind
from ..verbs.lifetime import give_back
from ..verbs.registrar import DeviceRegistrar
from .failover.leave import may_fail_over
from .link import Link, LinkKey, LinkState
from .member import ChannelMember, Member
from .message_memory import MessageMemory
from .pregranted import Holder, Issuer

if TYPE_CHECKING:
    from ..verbs.memory import Arena, Block
    from .engine import Engine

logger = logging.getLogger("aiordma.link")

#: Time in which a peer answers Delete Link.
_GOODBYE_SECONDS = 2.0


class LinkGroup:
    """Connections to one peer that share a link."""

    def __init__(self, engine: Engine, key: LinkKey, peer: str) -> None:
        self.engine, self.key, self.peer = engine, key, peer
        self.members: set[Member] = set()
        self.ready_waiters: list[object] = []
        self.idle_since = engine.waker.now()
        #: Proves that a new connection comes from the other end (proto/proof.py, link_secret).
        self.secret = b""
        #: Rings handed out in advance, at either end.
        self.tickets = Holder(self) if key.side == "client" else Issuer(self)
        #: Links that the peer can have with us, as far as is known (2: several); streams that have come here
        #: from one that failed.
        self.peer_links, self.moved_here = 1, 0
        self._closed = False
        self._retired_at: float | None = None
        parts = engine.take_parts()
        try:
            self.link = Link(
                engine, parts, key, peer, self._on_link_failed, self._in_use, self.tickets.on_message
            )
        except BaseException:
            parts.close()
            raise
        ring = engine.config.ring_bytes
        self.rings: Arena = engine.pool.arena(
            DeviceRegistrar(engine.backend, parts.pd, remote=True), first_slab_bytes=ring * 2
        )
        self._messages: MessageMemory | None = None
        self._page: Block | None = None
        engine.groups[key] = self
        engine.all_groups.add(self)

    @property
    def active(self) -> bool:
        return self.link.state is LinkState.ACTIVE

    @property
    def messages(self) -> MessageMemory:
        """Memory for large messages, made for the first channel."""
        if self._messages is None:
            self._messages = MessageMemory(self.engine, self.link.parts)
        return self._messages

    @property
    def page(self) -> Block:
        """Memory that the peer may write and nobody reads: where the keepalive of a link without rings
        goes.
        """
        if self._page is None:
            self._page = self.rings.allocate(4096)
        return self._page

    def free_page(self) -> None:
        if self._page is not None:
            self._page.free(0)
            self._page = None

    def look(self, now: float) -> None:
        """The engine's timer comes by."""
        self.tickets.look(now)
        if self._messages is not None:
            self._messages.look()
            for member in list(self.members):
                member.look(now)

    @property
    def setting_up(self) -> bool:
        return self.link.state is LinkState.SETTING_UP

    @property
    def streams_go_on(self) -> bool:
        """Whether streams may outlive the link: it was not this side that wanted the end."""
        return not self._closed and not self.engine.closed and self.engine.config.carry_timeout_ms > 0

    def _in_use(self) -> bool:
        # Before the TCP connection is handed over nobody has the connection yet; its negotiation tells.
        return any(
            (member.carrier is not None or member.failover is not None) and member.needs_link
            for member in self.members
        )

    async def wait_ready(self) -> bool:
        """Wait until the set-up has ended; whether the group can be used."""
        while self.setting_up and not self._closed:
            waiter = self.engine.waker.new_waiter()
            self.ready_waiters.append(waiter)
            await waiter.wait()
        return self.active and not self._closed

    def settled(self) -> None:
        """The set-up ended, in one way or the other."""
        waiters, self.ready_waiters = self.ready_waiters, []
        for waiter in waiters:
            waiter.set()  # type: ignore[attr-defined]

    def join(self, kind: int = 0) -> Member:
        """What one more connection needs (``Proposal.kind``). :raises MemoryLimitError: no memory."""
        member = ChannelMember(self) if kind == Kind.CALLS else Member(self)
        self.enter(member)
        return member

    def prepare(self) -> Member:
        """As :meth:`join`, for a stream that the peer may begin later: it is not counted yet."""
        return Member(self)

    def enter(self, member: Member) -> None:
        """Count a connection from now on."""
        self.members.add(member)

    def left(self, member: Member) -> None:
        self.members.discard(member)
        if not self.members:
            self.idle_since = self.engine.waker.now()
            if not self.active and not self.setting_up:
                self.close()

    @property
    def has_another(self) -> bool:
        """Whether its streams may find another link to this peer; of the two ends, the client looks for
        it."""
        return self.key.side == "client" and (self.engine.devices.several or self.peer_links > 1)

    def _on_link_failed(self, reason: BaseException) -> None:
        if may_fail_over(reason) and not self._closed and not self.link.orderly:
            self.engine.devices.way_failed(self.engine, self.peer, str(reason))
        if self.engine.groups.get(self.key) is self:
            del self.engine.groups[self.key]
        self.tickets.drop()
        self.settled()
        if not self.members:
            self.close()

    def retire(self, now: float) -> None:
        """Nobody uses it: take it off the list and say goodbye. It closes when the peer has answered, or
        when the peer has had time to; until then the message is under way and the QP must stay."""
        if self.active and not self.members and self._retired_at is None:
            self._retired_at = now
            self.tickets.drop()
            if self.engine.groups.get(self.key) is self:
                del self.engine.groups[self.key]
            self.link.say_goodbye()

    def give_up(self) -> None:
        """Begin nothing more on it: the peer says that it does not know the link. Connections that are on it
        stay, and the link itself finds out whether that is true: anybody may have said so."""
        if self.engine.groups.get(self.key) is self:
            del self.engine.groups[self.key]
        self.link.suspect()

    @property
    def retired(self) -> bool:
        """It says goodbye: nothing new may begin on it."""
        return self._retired_at is not None

    def may_close_at(self, now: float) -> bool:
        """It was retired, and the peer did not answer."""
        return self._retired_at is not None and now - self._retired_at >= _GOODBYE_SECONDS

    def statistics(self) -> dict[str, Any]:
        return {
            **self.link.statistics(),
            "side": self.key.side,
            "traffic_class": self.key.traffic_class,
            "connections": len(self.members),
            "moved_here": self.moved_here,
            "tickets": len(self.tickets),
            "ticket_ring_bytes": self.tickets.ring_bytes,
        }

    def close(self) -> None:
        """Take the link down. Members that are left are broken first."""
        if self._closed:
            return
        self._closed = True
        self.engine.all_groups.discard(self)
        if self.engine.groups.get(self.key) is self:
            del self.engine.groups[self.key]
        reusable = False

        def silence() -> None:
            nonlocal reusable
            reusable = self.link.parts.silence()

        # In this order: the QP leaves the network, then its memory goes, then the protection domain may.
        give_back(
            f"link to {self.peer}",
            self.link.say_goodbye,
            lambda: self.link.queue_pair.break_link(LinkError("closed by this side")),
            *(member.abort for member in self.members),
            self.link.close,
            self.settled,
            silence,
            self.free_page,
            *(() if self._messages is None else (self._messages.close,)),
            self.rings.close,
            lambda: self.engine.give_parts(self.link.parts, reusable=reusable),
        )
