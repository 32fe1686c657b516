"""A link group: all connections between two engines, on the links (today: one) between them.

A group is found again by the peer's engine id and by which side asked: the first connection makes it
("first contact"), all others join it with a ring each and no QP. Its memory with remote access is its own
and is never recycled to another group, so the rkeys in a peer's hands open nothing of anybody else's.
"""

from __future__ import annotations

import errno
import logging
import socket
from typing import TYPE_CHECKING, Any

from ._channel import MessageChannel
from ._ring import RingPipe
from .errors import Code, LinkError, NegotiationError
from .link import Link, LinkState
from .messagememory import MessageMemory
from .proto.clc import Kind
from .proto.message import SLOT_EXTRA_BYTES
from .verbs.registrar import DeviceRegistrar

if TYPE_CHECKING:
    from .engine import Engine
    from .verbs.memory import Arena, Block

logger = logging.getLogger("aiordma.link")

#: Time in which a peer answers Delete Link.
_GOODBYE_SECONDS = 2.0


class LinkGroup:
    """Connections to one peer. ``key`` is (the peer's engine id, "client" or "server": our role)."""

    def __init__(self, engine: Engine, key: tuple[bytes, str], peer: str) -> None:
        self.engine, self.key, self.peer = engine, key, peer
        self.members: set[Member] = set()
        self.ready_waiters: list[object] = []
        self.idle_since = engine.waker.now()
        #: Proves that a new connection comes from the other end (proto/proof.py, link_secret).
        self.secret = b""
        self._closed = False
        self._retired_at: float | None = None
        parts = engine.take_parts()
        try:
            self.link = Link(engine, parts, peer, key[1], self._on_link_failed, self._in_use)
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

    def look(self) -> None:
        """The engine's timer comes by."""
        if self._messages is not None:
            self._messages.look()

    @property
    def setting_up(self) -> bool:
        return self.link.state is LinkState.SETTING_UP

    def _in_use(self) -> bool:
        return any(not (member.pipe.is_closed or member.pipe.peer_gone) for member in self.members)

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
        return ChannelMember(self) if kind == Kind.CALLS else Member(self)

    def left(self, member: Member) -> None:
        self.members.discard(member)
        if not self.members:
            self.idle_since = self.engine.waker.now()
            if not self.active and not self.setting_up:
                self.close()

    def _on_link_failed(self, reason: BaseException) -> None:
        if self.engine.groups.get(self.key) is self:
            del self.engine.groups[self.key]
        self.settled()
        if not self.members:
            self.close()

    def retire(self, now: float) -> None:
        """Nobody uses it: take it off the list and say goodbye. It closes when the peer has answered, or
        when the peer has had time to; until then the message is under way and the QP must stay."""
        if self.active and not self.members and self._retired_at is None:
            self._retired_at = now
            if self.engine.groups.get(self.key) is self:
                del self.engine.groups[self.key]
            self.link.say_goodbye()

    def may_close_at(self, now: float) -> bool:
        """It was retired, and the peer did not answer."""
        return self._retired_at is not None and now - self._retired_at >= _GOODBYE_SECONDS

    def close(self) -> None:
        """Take the link down. Members that are left are broken first."""
        if self._closed:
            return
        self._closed = True
        self.engine.all_groups.discard(self)
        if self.engine.groups.get(self.key) is self:
            del self.engine.groups[self.key]
        self.link.say_goodbye()
        self.link.queue_pair.break_link(LinkError("closed by this side"))
        for member in list(self.members):
            member.pipe.abort()
        parts = self.link.close()
        self.settled()
        # In this order: the QP leaves the network, then its memory goes, then the protection domain may.
        reusable = parts.silence()
        if self._page is not None:
            self._page.free(0)
        if self._messages is not None:
            self._messages.close()
        self.rings.close()
        self.engine.give_parts(parts, reusable=reusable)


class Member:
    """What one connection holds: ring, mirror, pipe, and the TCP connection it began on."""

    pipe: Any  # a RingPipe or a MessageChannel: they live and end in the same way

    def __init__(self, group: LinkGroup) -> None:
        self.group = group
        self.sock: socket.socket | None = None
        self._open()
        self.pipe.on_finished = self._on_finished
        group.members.add(self)

    def _open(self) -> None:
        group, config = self.group, self.group.engine.config
        self.ring: Block = group.rings.allocate(config.ring_bytes, minimum=min(config.ring_bytes, 16384))
        self.mirror: Block | None = None
        try:
            self.pipe = RingPipe(
                group.link.queue_pair,
                rx_addr=self.ring.address,
                rx_size=self.ring.length,
                fragment=config.fragment_bytes,
                own=self,
            )
        except BaseException:
            self.ring.free(0)
            raise

    def offered(self) -> dict[str, int]:
        """Fields of Accept and Confirm: what the peer may use."""
        return {
            "rkey": self.ring.rkey,
            "rmb_addr": self.ring.address,
            "ring_bytes": self.ring.length,
            "token": self.pipe.token,
        }

    def connect(self, *, peer_token: int, ring_addr: int, rkey: int, ring_bytes: int, recv_bytes: int) -> Any:
        """Take the peer's half, from its Accept or Confirm. :raises NegotiationError: it is not usable."""
        queue_pair = self.group.link.queue_pair
        if queue_pair.max_inline < min(self.group.engine.config.fragment_bytes, ring_bytes):
            local = self.group.link.parts.local
            assert local is not None
            self.mirror = local.allocate(ring_bytes)
            self.pipe.use_mirror(self.mirror.address, self.mirror.lkey)
        self.group.link.probe_target = (ring_addr, rkey)
        self.pipe.connect(peer_token=peer_token, tx_addr=ring_addr, tx_rkey=rkey, tx_size=ring_bytes)
        return self.pipe

    # ---- the TCP connection stays open: liveness, and the order of the end

    def attach_tcp(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if self.pipe.is_finished:
            sock.close()
            return
        self.sock = sock
        self.group.engine.waker.watch_fd(sock.fileno(), self._on_tcp)

    def _on_tcp(self) -> None:
        sock = self.sock
        if sock is None:
            return
        try:
            data = sock.recv(4096)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._tcp_lost(
                f"the TCP connection to the peer broke ({errno.errorcode.get(error.errno or 0, error)})"
            )
            return
        if data:
            # Nothing but the negotiation ever travels here; bytes now mean that somebody else writes into
            # this connection.
            self._tcp_lost(f"{len(data)} unexpected bytes on the TCP connection beside the RDMA stream")
        else:
            self._tcp_lost("the peer's process has ended or closed the TCP connection")

    def _tcp_lost(self, reason: str) -> None:
        engine = self.group.engine
        self._drop_tcp()
        # The peer's last messages were delivered before it closed the TCP connection, but may not have been
        # polled yet.
        engine.poller.drain()
        if not self.pipe.peer_gone:
            self.pipe.break_with(LinkError(reason, self.group.peer))
            self.group.link.suspect()

    def _drop_tcp(self) -> None:
        sock, self.sock = self.sock, None
        if sock is not None:
            self.group.engine.waker.unwatch_fd(sock.fileno())
            sock.close()

    # ---- end

    def _on_finished(self, pipe: RingPipe | MessageChannel) -> None:
        self._drop_tcp()
        self._free()
        self.group.left(self)

    def _free(self) -> None:
        if not self.ring.freed:
            self.ring.free(min(self.pipe.bytes_received + self.pipe.readable, self.ring.length))
            if self.mirror is not None:
                self.mirror.free()

    def discard(self) -> None:
        """The negotiation failed: nobody ever wrote to these rings, or the link goes with them."""
        self.pipe.forget()
        self._drop_tcp()
        self._free()
        self.group.left(self)


class ChannelMember(Member):
    """What one message channel holds: no rings, as its large messages are in the memory of the group."""

    def _open(self) -> None:
        group, config = self.group, self.group.engine.config
        link, parts = group.link, group.link.parts
        message_bytes = parts.recv_bytes
        if link.queue_pair.max_inline < message_bytes:
            link.queue_pair.prepare_long(message_bytes, *parts.long_slots())
        else:
            link.queue_pair.prepare_long(message_bytes)
        self.pipe = MessageChannel(
            link.queue_pair,
            memory=group.messages,
            max_message_bytes=config.max_message_bytes,
            receive_bytes=config.channel_receive_bytes,
            fragment=config.fragment_bytes,
            own=self,
        )

    def offered(self) -> dict[str, int]:
        """The ring's fields: a page for the keepalive, and how much this end keeps for its user."""
        page = self.group.page
        return {
            "rkey": page.rkey,
            "rmb_addr": page.address,
            "ring_bytes": self.group.engine.config.channel_receive_bytes,
            "token": self.pipe.token,
        }

    def connect(self, *, peer_token: int, ring_addr: int, rkey: int, ring_bytes: int, recv_bytes: int) -> Any:
        link = self.group.link
        if link.queue_pair.max_reads == 0:
            raise NegotiationError(Code.DEVICE_FAILURE, "the two devices agreed on no RDMA READs")
        link.probe_target = (ring_addr, rkey)
        lead = 4 if self.group.engine.backend.is_iwarp else 0
        self.pipe.connect(
            peer_token=peer_token,
            budget=ring_bytes,
            message_bytes=min(link.parts.recv_bytes, recv_bytes + SLOT_EXTRA_BYTES) - lead,
        )
        return self.pipe

    def _free(self) -> None:
        pass
