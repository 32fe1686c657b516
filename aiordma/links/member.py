"""What one connection holds of a link group: ring, mirror, pipe, and the TCP connection it began on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ..errors import Code, LinkError, NegotiationError
from ..pipes._link_channel import MessageChannel
from ..pipes._ring import RingPipe
from ..pipes._switchable import SwitchablePipe
from ..proto.clcframe import MIN_RING_BYTES
from ..proto.failover import State
from ..proto.message import SLOT_EXTRA_BYTES
from .contracts import GroupView
from .failover.leave import Leaver
from .parting import unsent
from .ring_size import RingSize, first_ring_bytes, hear_of_waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ..pipes.tls import Carrier
    from ..verbs.memory.arena import Arena, Block
    from .link import Link
    from .link_memory import LinkMemory
    from .message_memory import MessageMemory


#: Of larger rings than this, and than this end's own are, no copy is made: the peer need not have them.
_LARGEST_COPY = 16 << 20


class MemberOwner(GroupView, Protocol):
    """The group, as its members see it."""

    @property
    def link(self) -> Link: ...
    @property
    def members(self) -> Collection[Member]: ...
    @property
    def rings(self) -> Arena:
        """Memory that the peer may write."""

    @property
    def messages(self) -> MessageMemory: ...
    @property
    def link_memory(self) -> LinkMemory: ...
    @property
    def page(self) -> Block:
        """The target of keepalives where there is no ring."""

    def free_page(self) -> None: ...
    @property
    def active(self) -> bool:
        """Whether the link works."""

    def left(self, member: Member) -> None:
        """The member is finished."""


class Member(Leaver):
    """What one connection holds: ring, mirror, pipe, and the TCP connection it began on."""

    group: MemberOwner
    #: Whether its ring may be replaced by one of another size.
    _resizes = False
    #: Since when the peer's last word on the link is missing.
    _unanswered_since: float | None = None
    _ring_size: RingSize | None = None

    def __init__(self, group: MemberOwner) -> None:
        self.group = group
        self._engine, self._link = group.engine, group.link
        #: What is copied from, where the device takes too little inline.
        self.mirror: Block | None = None
        self._open()
        self.pipe.on_finished = self._on_finished

    def _open(self) -> None:
        engine = self._engine
        size = first_ring_bytes(engine.config, engine.pool)
        self._open_ring(size)
        if size < engine.config.ring_bytes and self.ring.length >= size:  # else the pool has counted it
            engine.pool.budget.smaller_wanted()
        self._resizes = True
        hear_of_waiting(self)

    def _open_ring(self, size: int) -> None:
        self.ring: Block = self.group.rings.allocate(size, minimum=MIN_RING_BYTES)
        try:
            self.pipe = RingPipe(
                self._link.queue_pair,
                rx_addr=self.ring.address,
                rx_size=self.ring.length,
                fragment=self._engine.config.fragment_bytes,
                owner=self,
            )
        except BaseException:
            self.ring.free(0)
            raise
        self._first_ring = self.ring

    def offered(self) -> dict[str, int]:
        """Fields of Accept and Confirm: what the peer may use."""
        return {
            "rkey": self.ring.rkey,
            "rmb_addr": self.ring.address,
            "ring_bytes": self.ring.length,
            "token": self.pipe.token,
        }

    def connect(self, *, peer_token: int, ring_addr: int, rkey: int, ring_bytes: int, recv_bytes: int) -> Any:
        """Take the peer's half, from its Accept or Confirm.

        :raises NegotiationError: it is not usable.
        :raises MemoryLimitError: the device needs a copy of the peer's ring, and there is no memory for it.
        """
        if self._needs_mirror(ring_bytes):
            largest = max(_LARGEST_COPY, self._engine.config.largest_ring_bytes)
            if ring_bytes > largest:
                text = f"a ring of {ring_bytes} bytes, of which this device needs a copy (at most {largest})"
                raise NegotiationError(Code.LIMIT_REACHED, text)
            if self.mirror is not None and self.mirror.length < ring_bytes:
                self.mirror.free(0)
                self.mirror = None
            if self.mirror is None:
                self.mirror = self._link.allocate_local(ring_bytes)
            self.pipe.use_mirror(self.mirror.address, self.mirror.lkey)
        self._link.probe_target = (ring_addr, rkey)
        self.pipe.connect(peer_token=peer_token, tx_addr=ring_addr, tx_rkey=rkey, tx_size=ring_bytes)
        self.connection = SwitchablePipe(self.pipe)
        return self.connection

    def _needs_mirror(self, ring_bytes: int) -> bool:
        queue_pair = self._link.queue_pair
        inline = min(self._engine.config.fragment_bytes, ring_bytes)
        return queue_pair.max_inline < inline or not queue_pair.counts_astray

    def reserve_mirror(self) -> None:
        """Have memory for :meth:`connect` before the peer may begin: it cannot be refused any more then. It
        suffices for a peer whose rings are not larger than this end's. :raises MemoryLimitError:"""
        ring_bytes = self._engine.config.ring_bytes
        if self._needs_mirror(ring_bytes):
            self.mirror = self._link.allocate_local(ring_bytes)

    @property
    def held_bytes(self) -> int:
        """Registered memory that it holds."""
        return self.ring.length + (0 if self.mirror is None else self.mirror.length)

    def look(self, now: float) -> None:
        """Called by the engine's timer."""
        if self._resizes and self.needs_link:
            assert self.ring_size is not None
            self.ring_size.look(now)
        if not self._is_unanswered:
            self._unanswered_since = None
        elif self._unanswered_since is None:
            self._unanswered_since = now
        elif now - self._unanswered_since >= self._engine.config.link_timeout_ms / 1000:
            self._engine.poller.drain()  # the loop may be late, and the answer here
            if self._is_unanswered:
                self._end_unanswered()

    @property
    def _is_unanswered(self) -> bool:
        """Whether this end has closed the stream and the peer its TCP connection, without saying on the link
        that it writes no more.

        An honest peer that runs says so by itself. One that is stopped keeps its TCP connection.
        """
        pipe, exchange = self.pipe, self.exchange
        if not pipe.is_closed or pipe.is_finished or self.carrier is not None or self._end_shows is not None:
            return False
        if exchange is not None and exchange.state not in (State.AGREED, State.BROKEN):
            return False
        return self._peer_takes_part and not self.awaits_tcp

    def _end_unanswered(self) -> None:
        """The ring may be used again only when this peer cannot write there any more."""
        seconds = self._engine.config.link_timeout_ms / 1000
        text = f"the peer closed a stream's TCP connection, and did not end the stream within {seconds:g} s"
        self._link.queue_pair.break_link(LinkError(text, self.group.peer))

    # ---- the ring changes its size

    @property
    def ring_size(self) -> RingSize | None:
        """Judges and replaces the ring; None where that keeps its size.

        Made when it is first asked for: a short stream needs none.
        """
        if self._ring_size is None and self._resizes:
            self._ring_size = RingSize(self, self._engine.waker.now())
        return self._ring_size

    def ring_turned(self) -> None:
        """The whole ring was read while the peer waited for room (called by the ring pipe)."""
        if self.ring_size is not None:
            self.ring_size.turned()

    @property
    def needs_link(self) -> bool:
        """The user's connection is on the link, and not at its end."""
        pipe = self.pipe
        return not (pipe.is_closed or pipe.peer_gone or pipe.has_left)

    # ---- end

    def part(self) -> bool:
        """The loop ends: end the user's connection once it has nothing more to send; whether that is so.

        As on TCP, the peer gets a reset if something was not read.
        """
        connection = self.connection
        if connection is None or self.pipe.is_closed or self.pipe.error is not None or not self.group.active:
            return True
        if unsent(connection):
            return False
        self._part_with(connection)
        return True

    def _part_with(self, connection: Any) -> None:
        if connection.has_unread:
            connection.abort()
        else:
            connection.close()

    @property
    def parting(self) -> bool:
        """Whether the user's connection was closed, and the peer has not answered that yet."""
        pipe = self.pipe
        return self.group.active and pipe.is_closed and not pipe.is_finished and pipe.error is None

    def abort(self) -> None:
        """Abort the user's connection, wherever it is."""
        (self.pipe if self.connection is None else self.connection).abort()

    def _on_finished(self, pipe: RingPipe | MessageChannel) -> None:
        self._forget_end()
        self._drop_tcp()
        self._free()
        self.group.left(self)
        if self.early_open is not None:
            self.early_open.over()
            self.early_open = None

    def _free(self) -> None:
        self._resizes = False
        if self._ring_size is not None:
            self._ring_size.end()
            self._ring_size = None
        if not self.ring.freed:
            # A ring that took another's place was not filled from its beginning.
            known = self.exchange is None and self.ring is self._first_ring
            used = min(self.pipe.bytes_received + self.pipe.readable, self.ring.length)
            self.ring.free(used if known else None)
            if self.mirror is not None:
                self.mirror.free()

    def withdraw(self, *, used: bool) -> None:
        """A prepared connection (:meth:`LinkGroup.prepare`) will not begin.

        :param used: the peer may have written into the ring.
        """
        self.pipe.forget()
        self.ring.free(None if used else 0)
        if self.mirror is not None:
            self.mirror.free(0)

    def discard(self) -> None:
        """The negotiation failed: the peer never wrote to this ring, or the link breaks, too."""
        self.pipe.forget()
        self._drop_tcp()
        self._free()
        self.group.left(self)


class DatagramMember(Member):
    """What one datagram connection holds. Its ring keeps its size: the largest datagram depends on it."""

    def _open(self) -> None:
        self._open_ring(self._engine.config.ring_bytes)


class ChannelMember(Member):
    """What one message channel holds: no rings, as its large messages are in the memory of the group."""

    _aborting_since: float | None = None

    def _open(self) -> None:
        config = self._engine.config
        self._link.prepare_long_messages()
        _ = self.group.page  # now: later there is no way to say that there is none
        self.pipe = MessageChannel(
            self._link.queue_pair,
            memory=self.group.messages,
            max_message_bytes=config.max_message_bytes,
            receive_bytes=config.channel_receive_bytes,
            fragment=config.fragment_bytes,
            own=self,
        )

    @property
    def link_memory(self) -> LinkMemory:
        """Users' memory on the link of this channel."""
        return self.group.link_memory

    def reserve_mirror(self) -> None:
        """There is none."""

    def offered(self) -> dict[str, int]:
        """The ring's fields: a page for the keepalive, and how much this end keeps for its user."""
        page = self.group.page
        return {
            "rkey": page.rkey,
            "rmb_addr": page.address,
            "ring_bytes": self._engine.config.channel_receive_bytes,
            "token": self.pipe.token,
        }

    def connect(self, *, peer_token: int, ring_addr: int, rkey: int, ring_bytes: int, recv_bytes: int) -> Any:
        link = self._link
        if link.queue_pair.max_reads == 0:
            raise NegotiationError(Code.DEVICE_FAILURE, "the two devices agreed on no RDMA READs")
        link.probe_target = (ring_addr, rkey)
        lead = 4 if self._engine.backend.is_iwarp else 0
        self.pipe.connect(
            peer_token=peer_token,
            budget=ring_bytes,
            message_bytes=min(link.parts.recv_bytes, recv_bytes + SLOT_EXTRA_BYTES) - lead,
        )
        self.connection = self.pipe
        return self.pipe

    @property
    def needs_link(self) -> bool:
        return not (self.pipe.is_closed or self.pipe.peer_gone)

    def _part_with(self, connection: Any) -> None:
        self._end_and_tell(connection, connection.close)

    def abort(self) -> None:
        """See :class:`Member`. Its user, who may take no messages and so not have been told, is told now."""
        self._end_and_tell(self.pipe, self.pipe.abort)

    def _end_and_tell(self, channel: Any, end: Callable[[], None]) -> None:
        tell = channel.on_closed
        end()
        if tell is not None:
            tell(LinkError("the event loop that it was made in was closed or has ended", self.group.peer))

    whole = False  # a channel breaks with its link: its users know which calls were answered

    def look(self, now: float) -> None:
        """Release the memory of an aborted channel whose peer does not answer."""
        if self.pipe.is_aborting:
            if self._aborting_since is None:
                self._aborting_since = now
            elif now - self._aborting_since >= self._engine.config.link_timeout_ms / 1000:
                self.pipe.give_up()

    def _refuse(self, carrier: Carrier, data: bytes) -> None:
        self.lose_tcp(f"{len(data)} unexpected bytes on the TCP connection beside the message channel")

    def _free(self) -> None:
        others = (member for member in self.group.members if member is not self)
        if not any(isinstance(member, ChannelMember) for member in others):
            self.group.free_page()
