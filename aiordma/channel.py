"""Message channels: whole messages between two ends, in order, without waiting.

What calls and other users of messages are built on. A channel never blocks: :meth:`Channel.try_send` takes
a message whole or not at all, and everything that arrives comes by callback. Waiting is the business of the
layer above. One contract, three carriers: a link (``_channel.pyx``), a TCP connection (``message_tcp.py``),
and memory, for tests (``testing/channel.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .proto.clc import Kind
from .proto.message import MAX_HEAD_BYTES, ChannelStatistics

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

__all__ = ["MAX_HEAD_BYTES", "Channel", "ChannelStatistics", "Kind", "Message"]

Message = bytes | memoryview
"""A received message. Short ones are ``bytes``. Long ones are a read-only ``memoryview`` of a received
block, which goes back to its pool when the last view of it is gone."""


class Channel(Protocol):
    """One end of a connection that carries messages. Belongs to one event loop, and is used in its thread
    only.
    """

    path: str
    """``"rdma"``, ``"tcp"``, or ``"memory"`` in tests."""
    max_message_bytes: int
    """Longest message, head and body together (``Config.max_message_bytes``). A longer one from the peer
    breaks the channel."""
    on_message: Callable[[Message], None] | None
    """Called with every message, in order, and never from inside :meth:`try_send`. What arrives while it is
    None waits (up to ``Config.channel_receive_bytes``; then the peer has to). An exception in it breaks the
    channel."""
    on_writable: Callable[[], None] | None
    """Called when, after :meth:`try_send` returned False, it is worth trying again."""
    on_closed: Callable[[BaseException | None], None] | None
    """Called once, after the last message: with None when the peer closed in order, else with
    :attr:`error`. Not called after this end's own :meth:`close` or :meth:`abort`."""

    @property
    def error(self) -> BaseException | None:
        """Why the channel broke; None while it has not, and when it was closed in order."""

    def try_send(self, head: bytes, body: Buffer = b"") -> bool:
        """Send ``head + body`` as one message: all of it, or nothing. False: no credit, room or memory now.

        The bytes are taken with the call: a mutable ``body`` may be changed when it returns. (An immutable
        one may be kept by reference until the peer has it.)

        :param head: at most ``MAX_HEAD_BYTES``.
        :raises ValueError: ``head`` or the whole is too long.
        :raises anyio.ClosedResourceError: this end was closed.
        :raises anyio.BrokenResourceError: the channel broke (the reason is its cause), or the peer has
            closed it.
        """

    def spin(self) -> bool:
        """Look for messages, and where the policy allows it now, go on looking for a short while. True when
        at least one message of this channel was handed to :attr:`on_message`, or the channel ended. For an
        operation that would otherwise wait."""

    def close(self) -> None:
        """End in order: what was sent still arrives. Messages that come from now on are dropped.
        Idempotent.
        """

    def abort(self) -> None:
        """End at once: the peer's :attr:`on_closed` gets an error. Idempotent, and also a way to cut a
        :meth:`close` short."""

    def statistics(self) -> ChannelStatistics:
        """What happened so far."""
