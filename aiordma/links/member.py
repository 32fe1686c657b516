"""What one connection holds of a link group: ring, mirror, pipe, and the TCP connection it began on."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import Code, LinkError, NegotiationError
from ..pipes._link_channel import MessageChannel
from ..pipes._ring import RingPipe
from ..pipes._switchable import SwitchablePipe
from ..pipes.tls import TlsLayer
from ..proto.clc import MIN_RING_BYTES
from ..proto.failover import MAGIC, MESSAGE_BYTES, Refuse
from ..proto.message import SLOT_EXTRA_BYTES
from .contracts import GroupView
from .failover.leave import Failover, may_fail_over
from .failover.tcp_carrier import PEER_DIED, lost_because
from .parting import unsent
from .ring_size import RingSize, first_ring_bytes, hear_of_waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ..pipes.tls import Carrier
    from ..verbs.memory.arena import Arena, Block
    from ..wake.base import Handle
    from .contracts import EarlyOpenView
    from .link import Link
    from .link_memory import LinkMemory
    from .message_memory import MessageMemory


#: Longest time from the end of a process' TCP connection until the device knows of the end of the process.
_END_SHOWS_SECONDS = 5.0


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

    @property
    def streams_go_on(self) -> bool:
        """Whether streams may fail over to TCP."""

    @property
    def has_another(self) -> bool:
        """Whether this end looks for another link when this one fails."""

    def left(self, member: Member) -> None:
        """The member is finished."""


class Member:
    """What one connection holds: ring, mirror, pipe, and the TCP connection it began on."""

    #: A RingPipe or a MessageChannel: they live and end in the same way.
    pipe: Any
    #: What the user holds, from connect() on: a SwitchablePipe over the rings, or the MessageChannel itself.
    connection: Any = None
    #: Whether its ring may be replaced by one of another size.
    _resizes = False
    _ring_size: RingSize | None = None
    _on_tcp_needed: Callable[[], None] | None = None
    #: The peer's TCP connection has ended, and what its process has left is about to show.
    _end_shows: Handle | None = None

    def __init__(self, group: MemberOwner) -> None:
        self.group = group
        self._engine, self._link = group.engine, group.link
        #: The TCP connection while it is silent, then what moves the stream there.
        self.carrier: Carrier | None = None
        self.failover: Failover | None = None
        #: The caller will attach the TCP connection; why the link has failed meanwhile.
        self.awaits_tcp = False
        self._failed_because: BaseException | None = None
        #: Set for a connection that began with a ticket.
        self.early_open: EarlyOpenView | None = None
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
    def takes_part(self) -> bool:
        """Whether the peer has the connection, on the link."""
        return self.failover is None and self._peer_takes_part

    # ---- the TCP connection stays open: for liveness, the order of the end, and failover

    def attach_tcp(self, carrier: Carrier, received: bytes = b"") -> None:
        """:param received: bytes that came on it since the negotiation."""
        if self.pipe.is_finished:
            carrier.close()
            return
        self.carrier = carrier
        self._engine.waker.watch_fd(carrier.fileno(), self._on_tcp)
        self.awaits_tcp = False
        self._on_tcp_needed = None
        if isinstance(carrier, TlsLayer):
            # TLS may have decrypted the next bytes together with those before.
            self._engine.waker.call_soon(self._on_tcp)
        reason = self._failed_because
        if reason is not None and self.fail_over(reason) and self.failover is not None:
            if received:
                self.failover.receive(received)
        elif received:
            self._received(carrier, received)

    def look_at_tcp(self) -> None:
        """See whether the connection says something that the loop has not seen yet."""
        self._on_tcp()

    def _on_tcp(self) -> None:
        carrier = self.carrier
        if carrier is None:
            return
        try:
            # Never more than one message: the bytes behind it are the stream's.
            data = carrier.recv(MESSAGE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, MemoryError) as error:
            self.lose_tcp(lost_because(error))
            return
        if not data:
            self._tcp_ended()
            return
        self._received(carrier, data)

    def _tcp_ended(self) -> None:
        """The peer's process has ended, or closed the TCP connection.

        Where the device finds out by itself that the process has ended, it also knows whether anything was
        left undone, and is about to say so.
        """
        self._engine.poller.drain()
        if self.pipe.peer_gone or not self._link.shows_end or self.early_open is not None:
            self.lose_tcp(PEER_DIED)
        elif self.carrier is not None:
            self._drop_tcp()
            waker = self._engine.waker
            self._end_shows = waker.call_at(
                waker.now() + _END_SHOWS_SECONDS, lambda: self.lose_tcp(PEER_DIED)
            )

    def _received(self, carrier: Carrier, data: bytes) -> None:
        if self.early_open is not None and not self.early_open.bound and data[:1] != MAGIC[:1]:
            self.lose_tcp(self.early_open.explain(data))
            return
        # The peer leaves RDMA, or the bytes are not the peer's. Its last messages on the link were delivered
        # before it sent this, but may not have been polled yet.
        self._engine.poller.drain()
        if self.failover is not None:
            self.failover.receive(data)  # the link has failed at this end, too
            return
        if self.carrier is None:
            return  # a message of the link ended the connection
        # After an early open these may be the server's first bytes.
        if not self.whole:
            self._refuse(carrier, data)
            return
        self._begin_failover().receive(data)

    def _refuse(self, carrier: Carrier, data: bytes) -> None:
        with contextlib.suppress(OSError):
            carrier.send(Refuse(self.pipe.peer_token, Code.CARRY_REFUSED).encode())
        self._drop_tcp()

    @property
    def whole(self) -> bool:
        """Whether the connection can fail over to TCP if the peer leaves RDMA."""
        return bool(self.pipe.can_leave)

    @property
    def _peer_takes_part(self) -> bool:
        return self.early_open is None or self.early_open.bound

    def _begin_failover(self) -> Failover:
        carrier, self.carrier = self.carrier, None
        assert carrier is not None
        self._engine.waker.unwatch_fd(carrier.fileno())
        group = self.group
        self.failover = Failover(
            self.connection,
            self.pipe,
            carrier,
            self._engine,
            group.peer,
            group.key.traffic_class,
            self._link.lost_by_peer,
            has_another=group.has_another,
        )
        return self.failover

    def leave(self, code: Code, text: str) -> bool:
        """Begin to take the stream from RDMA to its TCP connection; whether that has begun."""
        if self.carrier is None or not self.whole or not self._peer_takes_part:
            return False
        if not self.group.streams_go_on:
            return False
        self._begin_failover().leave(code, text)
        return True

    def needs_tcp(self, callback: Callable[[], None]) -> None:
        """Call this when the link has failed, or if it has, and the TCP connection is not here yet."""
        self._on_tcp_needed = callback
        if self._failed_because is not None:
            callback()

    def fail_over(self, reason: BaseException) -> bool:
        """The link has failed; whether the stream may outlive it."""
        if (self.carrier is None and not self.awaits_tcp) or not self._peer_takes_part:
            return False
        if not self.group.streams_go_on or not may_fail_over(reason):
            return False
        if self.carrier is None:
            self._failed_because = reason
            self.pipe.stop_sending()
            if self._on_tcp_needed is not None:
                self._on_tcp_needed()
            return True
        self._begin_failover().leave(Code.LINK_LOST, getattr(reason, "reason", "") or str(reason))
        return True

    @property
    def fails_over(self) -> bool:
        """Whether it leaves a link that has failed, or will as soon as it has its TCP connection."""
        return self._failed_because is not None or self.failover is not None

    def quiesced(self) -> None:
        """The pipe has stopped sending, and nothing of it is under way."""
        if self.failover is not None:  # otherwise attach_tcp() asks again
            self.failover.quiesced()

    def cancel_failover(self) -> None:
        """The stream is aborted during the failover."""
        if self.failover is not None:
            self.failover.cancel()

    def lose_tcp(self, reason: str) -> None:
        """The TCP connection ends, and the stream with it unless the peer has finished."""
        early_open = self.early_open
        self._drop_tcp()
        # The peer's last messages were delivered before it closed the TCP connection, but may not have been
        # polled yet.
        self._engine.poller.drain()
        if not self.pipe.peer_gone:
            self.pipe.break_with(LinkError(reason, self.group.peer))
            self._link.suspect()
        if early_open is not None:
            early_open.tcp_lost()

    def _drop_tcp(self) -> None:
        carrier, self.carrier = self.carrier, None
        if carrier is not None:
            self._engine.waker.unwatch_fd(carrier.fileno())
            carrier.close()

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
        if connection.readable > connection.reads_ahead:
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
        if self._end_shows is not None:
            self._end_shows.cancel()
            self._end_shows = None
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
            known = self.failover is None and self.ring is self._first_ring
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
        tell = connection.on_closed
        connection.close()
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
