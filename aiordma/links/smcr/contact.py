"""One negotiation with a kernel's SMC-R at the engine: queue pairs and rings for what ``proto/smcr.py`` says.

Its driver (:mod:`aiordma.negotiation.kernel_peer`) brings what comes by TCP, and gets events about the TCP
connection and the end. Each step that fails here declines where that is possible still. What the peer may
have begun to use is given up in a way that it sees, or kept from others as long as the link lasts.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from ...addresses import host_of, leads_to
from ...errors import Code, NegotiationError, RemoteProtocolError, VerbsError
from ...proto.clc import Accept
from ...proto.errors import LocalProtocolError
from ...proto.events import Confirmed, Failed, UseRdma, UseTcp
from ...proto.smcr import MakeReady, Queue, SmcrClient, SmcrServer
from ...verbs.memory.budget import MemoryLimitError
from .group import GroupKeeper, KernelGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...proto.clc import Confirm
    from ...proto.events import Event
    from ...proto.smcr import SmcrEvent
    from ..group import GroupOwner
    from .member import KernelMember


#: First contacts of one client's address at a time. Linux has one.
_SET_UPS = 4


class ContactOwner(GroupKeeper, Protocol):
    """The engine's end towards kernels."""

    @property
    def engine(self) -> GroupOwner: ...


class KernelContact:
    """At either end, made by :class:`.peers.KernelPeers`. ``ClcIO.receive()`` takes it for a handshake."""

    def __init__(
        self,
        kernels: ContactOwner,
        machine: SmcrClient | SmcrServer,
        peer: str,
        tell: Callable[[list[Event]], None],
    ) -> None:
        self._kernels, self._machine, self._peer, self._tell = kernels, machine, peer, tell
        #: What knows the groups that it may join; kept by it, and by the group that it makes.
        self.host: object = None
        #: Set with the event ``UseRdma``, and the caller's from then on.
        self.pipe: Any = None
        #: Why this end declined.
        self.refusal: NegotiationError | None = None
        #: The pipe has been handed out, or never will be.
        self.is_over = False
        self._group: KernelGroup | None = None
        self._member: KernelMember | None = None
        self._is_new = False
        #: The peer may write into the ring.
        self._offered = False

    def asks(self, host: str) -> bool:
        """Whether this is the client, and the server is there."""
        return isinstance(self._machine, SmcrClient) and host_of(self._peer) == host

    # ---- the handshake, as the TCP connection sees it

    @property
    def done(self) -> bool:
        return self._machine.done

    @property
    def heard_all(self) -> bool:
        return self._machine.handshake.heard_all

    def next_deadline(self) -> float | None:
        return self._machine.next_deadline()

    def start(self) -> list[Event]:
        """Client: the first events."""
        assert isinstance(self._machine, SmcrClient)
        return self._carried_out(self._machine.start())

    def receive(self, data: bytes, now: float) -> list[Event]:
        return self._carried_out(self._machine.receive(data, now))

    def eof(self, now: float) -> list[Event]:
        # It may have overtaken what has come over the link.
        self._kernels.engine.poller.drain()
        return [] if self.done else self._carried_out(self._machine.eof(now))

    def on_timer(self, now: float) -> list[Event]:
        return self._carried_out(self._machine.on_timer(now))

    def refuse(self, error: NegotiationError) -> list[Event]:
        """Decline, where that is possible."""
        self.refusal = error
        return self._carried_out(self._machine.refuse(error.code, self._now()))

    # ---- what the link reports

    def _on_active(self) -> None:
        if not self.done and not self.is_over:
            self._tell(self._carried_out(self._machine.active(self._now())))

    def _on_link_failed(self, reason: BaseException) -> None:
        if self.done or self.is_over:
            return
        violation = isinstance(reason, RemoteProtocolError)
        code = Code.PROTOCOL_VIOLATION if violation else Code.TIMEOUT_CONFIRM_LINK
        try:
            events = self._machine.link_ended(code, str(reason), self._now())
        except LocalProtocolError:
            return  # the peer has not agreed yet: what comes next finds the link unusable, and declines
        self._tell(self._carried_out(events))

    def _now(self) -> float:
        return self._kernels.engine.waker.now()

    # ---- what the machine asks for

    def _carried_out(self, events: list[SmcrEvent]) -> list[Event]:
        """Do what concerns queue pairs and rings; the events that are left."""
        left: list[Event] = []
        queue = deque(events)
        while queue:
            event = queue.popleft()
            if isinstance(event, MakeReady):
                queue.extend(self._guarded(self._prepare, event))
            elif isinstance(event, Confirmed):
                more = self._guarded(self._confirm, event.confirm)
                if more:  # it cannot: what followed is void
                    queue.clear()
                queue.extend(more)
            else:
                self._note(event)
                left.append(event)
        return left

    def _guarded(self, step: Callable[[Any], list[SmcrEvent]], what: Any) -> list[SmcrEvent]:
        """A step that may fail: this end declines then, if that is possible still."""
        try:
            return step(what)
        except MemoryLimitError as error:
            refusal = NegotiationError(error.code, str(error))
        except VerbsError as error:
            refusal = NegotiationError(Code.DEVICE_FAILURE, str(error))
        except NegotiationError as error:
            refusal = error
        except LocalProtocolError as error:  # an answer that cannot be made
            refusal = NegotiationError(Code.INTERNAL, str(error))
        self.refusal = refusal
        if self.done:  # the peer uses the connection
            return [Failed(refusal.code, str(refusal))]
        return self._machine.refuse(refusal.code, self._now())

    def _prepare(self, event: MakeReady) -> list[SmcrEvent]:
        """:raises NegotiationError: or MemoryLimitError or VerbsError: this end cannot."""
        kernels, machine, peer = self._kernels, self._machine, event.peer
        if self._member is not None:  # whose ring would be lost
            raise NegotiationError(Code.OUT_OF_SYNC, "the peer asks a second time")
        self._is_new = event.group is None
        if event.group is None:
            if not isinstance(peer, Accept):
                self._check_set_ups()
            self._group = KernelGroup(kernels, kernels.engine, machine.role, self._peer, self._on_link_failed)
        else:
            self._group = kernels.groups_here[event.group]
        group = self._group
        self._member = member = group.join()
        if isinstance(peer, Accept):
            if self._is_new:
                self._connect_link(peer)
            member.connect_to(peer)
        else:
            member.reserve_mirror()
        queue = None
        if self._is_new:
            own = group.link.address
            queue = Queue(own.qp_num, own.psn, own.qp_num)
        events = machine.ready(member.offer(), queue, self._now())
        self._offered = True
        if isinstance(peer, Accept) and self._is_new:
            self._begin_link()
        return events

    def _check_set_ups(self) -> None:
        """:raises NegotiationError: too many links of this client are being set up."""
        host = host_of(self._peer)
        groups = [group for group in self._kernels.engine.all_groups if isinstance(group, KernelGroup)]
        if sum(group.setting_up and group.key.host == host for group in groups) >= _SET_UPS:
            raise NegotiationError(Code.LIMIT_REACHED, "too many first contacts at the same time")

    def _connect_link(self, peer: Accept | Confirm) -> None:
        assert self._group is not None
        self._group.hostname, self._group.release = peer.hostname, peer.release
        self._group.link.connect_to(peer, proved=leads_to(peer.gid, host_of(self._peer)))

    def _begin_link(self) -> None:
        assert self._group is not None
        assert self._machine.group is not None
        self._group.host = self.host
        self._group.begin(self._machine.group, self._on_active)

    def _confirm(self, confirm: Confirm) -> list[SmcrEvent]:
        """As :meth:`_prepare`."""
        assert self._member is not None
        assert isinstance(self._machine, SmcrServer)
        if self._is_new:
            self._connect_link(confirm)
        self._member.connect_to(confirm)
        if self._is_new:
            self._machine.connected(self._now())
            self._begin_link()
        return []

    def _note(self, event: Event) -> None:
        if isinstance(event, UseTcp) and event.peer is not None:
            self._offered = False  # it uses nothing of what it was offered
        elif isinstance(event, UseRdma) and self._member is not None and not self.is_over:
            self._member.awaits_tcp = True
            self.pipe, self.is_over = self._member.connection, True

    # ---- the end

    @property
    def description(self) -> str:
        """The peer, for people."""
        return "" if self._group is None else self._group.description

    def abandon(self) -> None:
        """Release everything. Idempotent; without effect once the pipe has been handed out."""
        if self.is_over:
            return
        self.is_over = True
        group, member = self._group, self._member
        if group is None:
            return
        if self._is_new:  # the link is this connection's alone, unless others have joined meanwhile
            if not group.active or group.members <= {member}:
                group.close()
                return
        if member is not None:
            self._leave(member)

    def _leave(self, member: KernelMember) -> None:
        """Of a link that others use."""
        confirm = self._machine.confirm if isinstance(self._machine, SmcrServer) else None
        if confirm is not None:
            member.give_up(confirm)
        else:
            member.discard(used=self._offered)
