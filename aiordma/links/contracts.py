"""What the parts of a link group need of their owners, so that no part imports the owner that made it.

The engine makes contacts and link groups, a group makes members and tickets, a member makes what
takes its stream to TCP and back. An owner imports its parts. A part sees its owner through a protocol: one
of this module, or one beside the part, where that needs types of the modules between them.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..addresses import host_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from .._cq import CompletionPoller
    from ..config import Config
    from ..errors import Code
    from ..pipes.tls import Carrier
    from ..proto.clc import Proposal
    from ..verbs.cq import CompletionQueue
    from ..verbs.device import Backend
    from ..verbs.events import DeviceEvent
    from ..verbs.memory.arena import Block
    from ..verbs.memory.pool import MemoryPool
    from ..wake.base import Waker


class LinkKey(NamedTuple):
    """What connections must have in common to share a link."""

    #: The peer's engine.
    engine_id: bytes
    #: Our part: "client" or "server".
    side: str
    #: Of its packets in both directions: an adapter and the network know queue pairs, not connections.
    traffic_class: int
    #: The peer's address, which its TCP connection proves. An engine id proves nothing.
    host: str


def server_key(proposal: Proposal, peer: str) -> LinkKey:
    """Of the link that a client's connection joins, or makes."""
    return LinkKey(proposal.engine_id, "server", proposal.traffic_class, host_of(peer))


class LinkState(enum.Enum):
    SETTING_UP = "setting up"
    ACTIVE = "active"
    FAILED = "failed"
    CLOSED = "closed"


class DeviceUser(Protocol):
    """What has a queue pair of its own on an engine's device, beside the links."""

    @property
    def qp_num(self) -> int: ...
    def device_event(self, event: DeviceEvent) -> None:
        """The queue pair, its port or its device has failed."""


class EngineView(Protocol):
    """The engine, as everything sees it that lives on it."""

    closed: bool
    #: Why nothing new begins here; None: it does.
    drained: str | None
    #: Identifies the engine to its clients: 16 bytes.
    engine_id: bytes
    #: Equal for ends whose software devices can share memory: 16 bytes.
    host_id: bytes

    # Read-only here, and so of any type that satisfies the protocol.
    @property
    def waker(self) -> Waker: ...
    @property
    def config(self) -> Config: ...
    @property
    def backend(self) -> Backend: ...
    @property
    def cq(self) -> CompletionQueue: ...
    @property
    def poller(self) -> CompletionPoller: ...
    @property
    def pool(self) -> MemoryPool: ...
    @property
    def devices(self) -> DevicesView: ...
    @property
    def groups(self) -> Mapping[LinkKey, GroupView]:
        """The groups that new connections can join."""

    @property
    def all_groups(self) -> Collection[GroupView]:
        """Every group that is not closed, also of failed links."""

    @property
    def users(self) -> set[DeviceUser]:
        """They are told when the device fails. The engine of a device that is gone waits for them."""

    def best(self, besides: EngineView | None = None) -> EngineView:
        """The engine to use for something new, another one than ``besides`` if there is one.

        :raises NegotiationError: none can be used now.
        """

    def id_towards(self, host: str) -> bytes:
        """Identifies the engine to servers at this address: 16 bytes."""

    def change_config(self, config: Config) -> None:
        """Use other settings from now on."""

    def drain(self, text: str) -> int:
        """Begin nothing new, and let streams leave; how many do."""

    def read_events(self) -> None:
        """Read the device's asynchronous events now."""

    def check_reachable(self, peer_host_id: bytes) -> None:
        """:raises NegotiationError: this device cannot reach a peer of that host."""

    def reserve_completions(self, count: int) -> int:
        """:raises NegotiationError: the completion queue has no room for so many."""

    def return_completions(self, links: int) -> None: ...
    async def propose(
        self, kind: int = 0, *, peer: str = "", unknown_qpn: int = 0, traffic_class: int | None = None
    ) -> Any:
        """Client: begin a negotiation (:class:`.contact.ClientContact`)."""

    async def answer(self, proposal: Proposal, peer: str = "") -> Any:
        """Server: answer a Proposal (:class:`.contact.ServerContact`)."""

    def close_alone(self) -> None: ...


class DevicesView(Protocol):
    """The devices of an event loop, for what leaves one that has failed."""

    @property
    def on_recovered(self) -> set[Callable[[], None]]:
        """Called when a device reports that its port is up again."""

    def find_another(self, framed: SwitchedStream, why: str) -> None:
        """A stream has left its link because that failed: find another link for it."""


class GroupView(Protocol):
    """A link group, as its parts see it."""

    @property
    def engine(self) -> EngineView: ...
    @property
    def key(self) -> LinkKey: ...
    @property
    def peer(self) -> str: ...
    @property
    def secret(self) -> bytes: ...
    @property
    def members(self) -> Collection[MemberView]: ...
    @property
    def active(self) -> bool:
        """Whether the link works."""

    @property
    def streams_go_on(self) -> bool:
        """Whether streams may fail over to TCP."""

    @property
    def has_another(self) -> bool:
        """Whether this end looks for another link when this one fails."""

    @property
    def setting_up(self) -> bool: ...
    @property
    def qp_num(self) -> int: ...

    #: Streams that came here from a link that failed.
    moved_here: int

    def give_up(self) -> None:
        """Let no new connection join: the peer does not know the link."""

    def prepare(self) -> MemberView:
        """A member that does not count until :meth:`enter`. :raises MemoryLimitError:"""

    def join(self) -> MemberView:
        """A member for a byte stream. :raises MemoryLimitError:"""

    def enter(self, member: Any) -> None:
        """Count a member that was prepared."""

    def queue_llc(self, message: bytes) -> int:
        """Send a link control message, as soon as there is credit; its number."""


class MemberView(Protocol):
    """What one connection holds of a group, as tickets and failover see it."""

    #: A RingPipe or a MessageChannel.
    pipe: Any
    #: What the user holds: a SwitchablePipe, or the MessageChannel itself.
    connection: Any
    early_open: EarlyOpenView | None

    @property
    def ring(self) -> Block: ...
    @property
    def held_bytes(self) -> int:
        """Registered memory that it holds."""

    def connect(self, *, peer_token: int, ring_addr: int, rkey: int, ring_bytes: int, recv_bytes: int) -> Any:
        """Take the peer's half. :raises NegotiationError: it is not usable."""

    def attach_tcp(self, carrier: Carrier, received: bytes = b"") -> None: ...
    def lose_tcp(self, reason: str) -> None: ...
    def leave(self, code: Code, text: str) -> bool: ...
    def withdraw(self, *, used: bool) -> None: ...
    def discard(self) -> None: ...


class EarlyOpenView(Protocol):
    """A connection begun with a ticket, as its member sees it."""

    @property
    def bound(self) -> bool:
        """Whether the server has taken the connection."""

    def explain(self, data: bytes) -> str: ...
    def tcp_lost(self) -> None: ...
    def over(self) -> None: ...


class SwitchedStream(Protocol):
    """A stream that failed over to TCP, as the search for another link sees it."""

    @property
    def peer(self) -> str: ...
    @property
    def may_rejoin(self) -> bool: ...
    def rejoin(self) -> RejoinView: ...


class RejoinView(Protocol):
    """One attempt of a stream to rejoin RDMA (:class:`.failover.rejoin.Rejoin`)."""

    #: Called when it is over.
    on_over: Callable[[], None] | None

    @property
    def over(self) -> bool: ...
    @property
    def error(self) -> Exception | None: ...
    @property
    def group(self) -> GroupView | None: ...
    def ask(self) -> None: ...
    def answer(self, proposal: bytes, /) -> None: ...
    def receive(self, message: bytes, /) -> None: ...
    def cancel(self) -> None: ...
    def peer_ended(self) -> None: ...
    def peer_moved(self) -> None: ...
    def try_hand_over(self) -> None: ...
    @property
    def may_be_revoked(self) -> bool: ...
    async def wait(self) -> None: ...
