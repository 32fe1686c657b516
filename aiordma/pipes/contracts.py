"""What a pipe promises: the contracts of byte pipes, message pipes and message channels.

A pipe never waits. Every method is synchronous and returns at once; what comes later arrives by callback.
Waiting is the business of the packages above (``streams``, ``datagrams``, ``rpc``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Buffer as AnyBuffer

    from ..errors import Code, FallbackReason
    from ..proto.message import ChannelStatistics
    from ..verbs.memory.arena import Block
    from ..verbs.memory.queue import Waiting
    from .placement import Placement

Buffer = bytes | bytearray | memoryview
"""What the byte pipes and message pipes take."""

Message = bytes | memoryview
"""A received message. Short ones are ``bytes``. Long ones are a read-only ``memoryview`` of a received
block, which goes back to its pool when the last view of it is gone."""


class Placer(Protocol):
    """Names memory for the long messages of a channel that were sent with a head of their own."""

    def place(self, head: bytes, body_bytes: int, /) -> Placement | None:
        """Memory for the body of a message that is about to be received; None: the channel's own. Asked once
        for each message, when there is room for it, perhaps before the messages in front of it were handed
        over. An exception breaks the channel.
        """

    def placed(self, head: bytes, placement: Placement, /) -> None:
        """Called in place of ``Channel.on_message``, in its turn: the message is complete, its body where
        :meth:`place` said. (Or it is not, if :meth:`Channel.withdraw` was called.)
        """


class Channel(Protocol):
    """One end of a connection that carries messages. Belongs to one event loop, and is used in its thread
    only.
    """

    on_message: Callable[[Message], None] | None
    """Called with every message, in order, and never from inside :meth:`try_send`. What arrives while it is
    None waits (up to ``Config.channel_receive_bytes``; then the peer has to). An exception in it breaks the
    channel."""
    on_writable: Callable[[], None] | None
    """Called when, after :meth:`try_send` returned False, it is worth trying again."""
    on_closed: Callable[[BaseException | None], None] | None
    """Called once, after the last message: with None when the peer closed in order, else with
    :attr:`error`, behind what had come whole and was not taken yet. Where the end has come before it is set,
    it is called soon. Not called after this end's own :meth:`close` or :meth:`abort`."""

    placer: Placer | None
    """Asked where long messages go; set before or while they arrive."""

    @property
    def path(self) -> str:
        """``"rdma"``, ``"tcp"``, or ``"memory"`` in tests."""

    @property
    def max_message_bytes(self) -> int:
        """Longest message, head and body together (``Config.max_message_bytes``). A longer one from the peer
        breaks the channel."""

    @property
    def error(self) -> BaseException | None:
        """Why the channel broke; None while it has not, and when it was closed in order."""

    def try_send(self, head: bytes, body: AnyBuffer = b"") -> bool:
        """Send ``head + body`` as one message: all of it, or nothing. False: no credit, room or memory now.

        The bytes are taken with the call: a mutable ``body`` may be changed when it returns. (An immutable
        one may be kept by reference until the peer has it.)

        :param head: at most ``MAX_HEAD_BYTES``.
        :raises ValueError: ``head`` or the whole is too long.
        :raises MemoryError: the engine's memory could never hold it (``Config.memory_limit_bytes``).
        :raises anyio.ClosedResourceError: this end was closed.
        :raises anyio.BrokenResourceError: the channel broke (the reason is its cause), or the peer has
            closed it.
        """

    def spin(self) -> bool:
        """Look for messages, and where the policy allows it now, go on looking for a short while. True when
        at least one message of this channel was handed to :attr:`on_message`, or the channel ended. For an
        operation that would otherwise wait."""

    def withdraw(self, placement: Placement, /) -> None:
        """Put nothing more where :attr:`placer` said. What the device is doing there ends first:
        ``placement.released`` is then True. The message still comes, and its body is lost.
        """

    def close(self) -> None:
        """End in order: what was sent still arrives. Messages that come from now on are dropped.
        Idempotent.
        """

    def abort(self) -> None:
        """End at once: the peer's :attr:`on_closed` gets an error. Idempotent, and also a way to cut a
        :meth:`close` short."""

    def statistics(self) -> ChannelStatistics:
        """What happened so far."""


class Pipe(Protocol):
    """One byte pipe in each direction. Every method is synchronous and none blocks."""

    on_readable: Callable[[], None] | None
    on_writable: Callable[[], None] | None
    #: Its owner is called from the loop when something arrives, and does not poll: the engine may do it.
    pushes: bool
    #: So many bytes that have come count as read where this process ends or is killed: on TCP, its user would
    #: have taken them from the kernel by then. With more, the peer gets a reset, as from the kernel.
    reads_ahead: int

    @property
    def path(self) -> str: ...
    @property
    def readable(self) -> int: ...
    @property
    def writable(self) -> int: ...
    @property
    def at_eof(self) -> bool: ...
    @property
    def error(self) -> BaseException | None: ...
    def try_send(self, data: Buffer, start: int = 0, /) -> int: ...
    def poll_send(self, data: Buffer, start: int = 0, /) -> int: ...
    def try_receive(self, max_bytes: int, /) -> bytes | None: ...
    def poll_receive(self, max_bytes: int, /) -> bytes | None: ...
    def try_receive_into(self, buf: bytearray | memoryview, /) -> int: ...
    def view(self) -> memoryview: ...
    def consume(self, n: int, /) -> None: ...
    def spin_readable(self) -> bool: ...
    def spin_writable(self) -> bool: ...
    def look(self) -> None:
        """Notice what has come, data, room, or the end, whether or not the loop has had a turn since, and
        whatever the polling policy. For operations that do not wait."""

    def send_eof(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def statistics(self) -> Any: ...


class Transport(Protocol):
    """What a switchable pipe (:mod:`aiordma.pipes._switchable`) sends by or receives from: rings, or frames
    on TCP. The contract of a pipe without polling, and without what the switchable pipe knows by itself."""

    on_readable: Callable[[], None] | None
    on_writable: Callable[[], None] | None

    @property
    def readable(self) -> int: ...
    @property
    def writable(self) -> int: ...
    @property
    def at_eof(self) -> bool: ...
    @property
    def error(self) -> BaseException | None: ...
    @property
    def drained(self) -> bool:
        """The peer sends by another transport, and all that came by this one was read."""

    @property
    def counters(self) -> tuple[int, int]:
        """Bytes of the stream that were sent and received here."""

    def try_send(self, data: Buffer, start: int = 0, /) -> int: ...
    def try_receive(self, max_bytes: int, /) -> bytes | None: ...
    def try_receive_into(self, buffer: bytearray | memoryview, /) -> int: ...
    def view(self) -> memoryview: ...
    def consume(self, n: int, /) -> None: ...
    def send_eof(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class RejoinAttempt(Protocol):
    """One attempt of a stream to return to RDMA."""

    @property
    def over(self) -> bool: ...
    async def wait(self) -> None:
        """Until both ends are on RDMA. :raises NegotiationError: not this time."""


class Fallback(Transport, Protocol):
    """The transport that carries a stream while it is off RDMA."""

    reason: FallbackReason

    def look(self) -> None:
        """See :meth:`Pipe.look`."""

    def rejoin(self) -> RejoinAttempt:
        """Try to return to RDMA. :raises NegotiationError: not in this state."""


class RingOwner(Protocol):
    """What holds the memory and the TCP connection of a ring pipe."""

    #: What the user holds: the SwitchablePipe over the rings.
    connection: Any
    #: The TCP connection is not here yet, and will come.
    awaits_tcp: bool

    def fail_over(self, reason: BaseException) -> bool:
        """The link has failed; whether the stream may outlive it (``quiesced()`` follows)."""

    def quiesced(self) -> None:
        """The ring pipe has stopped sending, and nothing of it is under way."""

    def cancel_failover(self) -> None:
        """The stream is aborted while it leaves RDMA."""

    def leave(self, code: Code, text: str) -> bool:
        """Take the stream from RDMA to its TCP connection; whether that has begun."""

    def attach_tcp(self, carrier: Any, received: bytes = b"") -> None:
        """Take the TCP connection over; ``received``: what the peer has sent on it since it became silent."""

    def look_at_tcp(self) -> None:
        """See whether the TCP connection says something that the loop has not seen yet."""

    def ring_turned(self) -> None:
        """A whole ring of bytes was read while the peer waited for room, and ``grows`` is set."""


class MessagePipe(Protocol):
    """Whole messages in each direction. Every method is synchronous and none blocks."""

    max_message_bytes: int
    messages_sent: int
    messages_received: int
    times_blocked: int
    on_readable: Callable[[], None] | None
    on_writable: Callable[[], None] | None

    @property
    def path(self) -> str: ...
    @property
    def error(self) -> BaseException | None: ...
    @property
    def writable(self) -> int: ...
    def try_send(self, data: Buffer, /) -> bool: ...
    def send_many(self, messages: Sequence[Buffer], start: int = 0, /) -> int: ...
    def try_receive(self) -> bytes | None: ...
    def poll_receive(self) -> bytes | None: ...
    def receive_many(self, most: int, /) -> list[bytes] | None: ...
    def peek(self) -> memoryview | None: ...
    def discard(self) -> None: ...
    def spin_readable(self) -> bool: ...
    def spin_writable(self, message_bytes: int, /) -> bool: ...
    def look(self) -> None:
        """See :meth:`Pipe.look`."""

    def send_eof(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class TcpSocket(Protocol):
    """What a TCP pipe uses of a connected, non-blocking socket. A TLS layer on one has it, too."""

    @property
    def family(self) -> int: ...
    def fileno(self) -> int: ...
    def recv(self, size: int, flags: int = 0, /) -> bytes: ...
    def recv_into(self, buffer: memoryview, /) -> int: ...
    def send(self, data: Buffer, /) -> int: ...
    def shutdown(self, how: int, /) -> None: ...
    def setsockopt(self, level: int, option: int, value: int | bytes, /) -> None: ...
    def close(self) -> None: ...


class RendezvousMemory(Protocol):
    """Registered memory for the large messages of channels: *sources*, which the peer READs, and *sinks*,
    which messages are pulled into.
    """

    def take_source(self, length: int, /) -> Block | None:
        """A block for a message to be announced; None: no memory now.

        :raises MemoryError: it may never be had.
        """

    def release_source(self, block: Block, /) -> None:
        """The peer READs it no more."""

    def take_sink(self, length: int, /) -> Block | None:
        """A block to pull a message into; None: no memory now.

        :raises MemoryError: it may never be had.
        """

    def release_sink(self, block: Block, /) -> None:
        """Neither the device nor the user needs it any more. In any thread."""

    def may_copy(self, length: int, /) -> bool:
        """Whether a message for which there may never be a sink may be put together outside now."""

    def count_copy(self, length: int, /) -> object:
        """One is, until the last reference to the result is gone."""

    def may_lend(self) -> bool:
        """Whether users may keep further sinks; if not, they get copies."""

    def begin_placement(self, placement: Placement, /) -> tuple[int, int] | None:
        """Let the device write where a user has said: address and lkey. None: a copy costs less, or the
        device refuses."""

    def end_placement(self, placement: Placement, /) -> None:
        """It has let go. Idempotent."""

    def wait_for_source(self, channel: Waiting, /) -> None:
        """Have its ``on_memory()`` called when it may take a source."""

    def wait_for_sink(self, channel: Waiting, /) -> None:
        """Have its ``on_memory()`` called when it may take a sink."""

    def wait_for_copy(self, channel: Waiting, /) -> None:
        """Have its ``on_memory()`` called when it may copy."""
