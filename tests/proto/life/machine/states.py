"""The states of a stream's life: its two directions, what carries it, its rings and its TCP connection.

The directions have the names of RFC 9000, section 3. The end of a direction and the close are the flags
*sending done*, *closed* and *abnormal close* of RFC 7609. A send queue that completes what was posted and
takes nothing more is *drained*, as in the state SQD of a queue pair.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

__all__ = ["TRANSITIONS", "Input", "Leg", "Receiving", "RingStage", "Sending", "Tcp", "Transport"]


class Sending(enum.Enum):
    """What this end sends (RFC 9000, section 3.1)."""

    SEND = "Send"
    """Bytes may go."""
    HELD = "Send, held back"
    """Bytes wait: the stream is between two transports."""
    DATA_SENT = "Data Sent"
    """The end was announced, or is about to be."""
    STOPPED = "stopped by the peer"
    """The peer has closed and takes nothing (STOP_SENDING)."""
    RESET = "Reset"
    """This end or the peer aborted the stream, or what carried it is lost."""


class Receiving(enum.Enum):
    """What this end receives (RFC 9000, section 3.2)."""

    RECV = "Recv"
    """Bytes may come."""
    SIZE_KNOWN = "Size Known"
    """The peer's end is known; what came before it can be read."""
    DISCARDED = "discarded"
    """This end has closed: what comes is dropped."""
    RESET = "Reset"
    """The stream was aborted or lost. What has arrived can be read."""


class Transport(enum.Enum):
    """What carries the stream. From ``HELD`` to ``EXCHANGING`` nothing is sent."""

    OPENING = "rings, without the TCP connection yet"
    RING = "rings"
    HELD = "rings whose link has failed, without the TCP connection yet"
    DRAINING = "leaving: the send queue drains"
    EXCHANGING = "leaving: the peer's cursors are awaited"
    TCP = "frames on TCP"
    NEGOTIATING = "frames on TCP, while RDMA is negotiated"
    RETURNING = "frames on TCP one way, rings the other, or about to be"
    OVER = "nothing"


class RingStage(enum.IntEnum):
    """How far one pair of rings has been left."""

    ON_RDMA = 0
    STOPPING = 1
    """Nothing more is sent; what was posted is under way."""
    QUIESCED = 2
    """Nothing is under way; cursor messages that still arrive are kept, and not applied."""
    LEFT = 3
    """Another transport carries on; the rest of the ring is still read."""


class Tcp(enum.Enum):
    """Whose the stream's TCP connection is."""

    AWAITED = "the negotiation's"
    SILENT = "beside the rings: an end that writes there leaves RDMA"
    MESSAGES = "the exchange of cursors"
    FRAMES = "the stream"
    ENDED = "ended by the peer; the device is about to show what its process has left"
    GONE = "closed"


class Leg(NamedTuple):
    """One stretch of the stream: a pair of rings, or the frames on TCP behind it."""

    path: str
    """``"ring"`` or ``"tcp"``."""
    number: int
    """Rings are counted from 0. Frames have the number of the rings that they follow."""


class Input(enum.Enum):
    """What can happen, by the names of :class:`~.stream.StreamLife`'s methods."""

    OPENED = "opened"
    TCP_ATTACHED = "tcp_attached"
    SEND_EOF = "send_eof"
    CLOSE = "close"
    ABORT = "abort"
    LEAVE = "leave"
    DRAINED = "drained"
    PEER_FLAGS = "peer_flags"
    DELIVERED = "delivered"
    LINK_FAILED = "link_failed"
    QUIESCED = "quiesced"
    TCP_BYTES = "tcp_bytes"
    TCP_END = "tcp_end"
    TCP_ON_RING = "tcp_on_ring"
    TCP_MESSAGE = "tcp_message"
    TCP_EOF = "tcp_eof"
    TCP_FAILED = "tcp_failed"
    TCP_FLUSHED = "tcp_flushed"
    REJOIN = "rejoin"
    PROPOSED = "proposed"
    PREPARED = "prepared"
    ESTABLISHED = "established"
    REFUSED = "refused"
    TIMER = "on_timer"


_T, _I = Transport, Input


def _to(*states: Transport) -> frozenset[Transport]:
    return frozenset(states)


#: Every change of a life's ``transport``: from where, by what, to where. Any other input leaves it as it is.
#: ``tests/proto/life`` fails on a change that is missing here, and on a row that does not occur.
TRANSITIONS: dict[tuple[Transport, Input], frozenset[Transport]] = {
    # The negotiation hands the TCP connection over, perhaps with the peer's Leave on it.
    (_T.OPENING, _I.TCP_ATTACHED): _to(_T.RING, _T.DRAINING),
    (_T.OPENING, _I.LINK_FAILED): _to(_T.HELD, _T.OVER),
    (_T.OPENING, _I.PEER_FLAGS): _to(_T.OVER),
    (_T.OPENING, _I.DELIVERED): _to(_T.OVER),
    (_T.HELD, _I.TCP_ATTACHED): _to(_T.EXCHANGING, _T.TCP),
    (_T.HELD, _I.ABORT): _to(_T.OVER),
    # On rings, until both ends have said their last word, or this end or the peer leaves.
    (_T.RING, _I.PEER_FLAGS): _to(_T.OVER),
    (_T.RING, _I.DELIVERED): _to(_T.OVER),
    (_T.RING, _I.LEAVE): _to(_T.DRAINING),
    (_T.RING, _I.TCP_BYTES): _to(_T.DRAINING),
    (_T.RING, _I.LINK_FAILED): _to(_T.DRAINING, _T.OVER),
    (_T.RING, _I.TCP_EOF): _to(_T.OVER),
    (_T.RING, _I.TCP_FAILED): _to(_T.OVER),
    (_T.RING, _I.TIMER): _to(_T.OVER),
    # Leaving. Where the ends do not agree, an end says its last word on the link.
    (_T.DRAINING, _I.QUIESCED): _to(_T.EXCHANGING, _T.TCP, _T.OVER),
    (_T.DRAINING, _I.PEER_FLAGS): _to(_T.OVER),
    (_T.DRAINING, _I.ABORT): _to(_T.RING),
    (_T.DRAINING, _I.TCP_EOF): _to(_T.OVER, _T.RING),
    (_T.DRAINING, _I.TCP_FAILED): _to(_T.OVER, _T.RING),
    (_T.DRAINING, _I.TIMER): _to(_T.OVER, _T.RING),
    (_T.EXCHANGING, _I.TCP_BYTES): _to(_T.TCP),
    (_T.EXCHANGING, _I.ABORT): _to(_T.OVER, _T.RING),
    (_T.EXCHANGING, _I.TCP_EOF): _to(_T.OVER, _T.RING),
    (_T.EXCHANGING, _I.TCP_FAILED): _to(_T.OVER, _T.RING),
    (_T.EXCHANGING, _I.TIMER): _to(_T.OVER, _T.RING),
    # On TCP, until the connection is closed: by what both ends say, or after the time to linger.
    (_T.TCP, _I.REJOIN): _to(_T.NEGOTIATING),
    (_T.TCP, _I.TCP_MESSAGE): _to(_T.NEGOTIATING),
    (_T.TCP, _I.TCP_END): _to(_T.OVER),
    (_T.TCP, _I.TCP_FLUSHED): _to(_T.OVER),
    (_T.TCP, _I.ABORT): _to(_T.OVER),
    (_T.TCP, _I.TCP_EOF): _to(_T.OVER),
    (_T.TCP, _I.TCP_FAILED): _to(_T.OVER),
    (_T.TCP, _I.TIMER): _to(_T.OVER),
    # The negotiation of the way back. Whatever stops it, the stream stays on TCP.
    (_T.NEGOTIATING, _I.ESTABLISHED): _to(_T.RETURNING),
    (_T.NEGOTIATING, _I.PROPOSED): _to(_T.TCP),
    (_T.NEGOTIATING, _I.REFUSED): _to(_T.TCP),
    (_T.NEGOTIATING, _I.TCP_MESSAGE): _to(_T.TCP),
    (_T.NEGOTIATING, _I.TCP_END): _to(_T.TCP),
    (_T.NEGOTIATING, _I.CLOSE): _to(_T.TCP),
    (_T.NEGOTIATING, _I.ABORT): _to(_T.OVER),
    (_T.NEGOTIATING, _I.TCP_EOF): _to(_T.OVER),
    (_T.NEGOTIATING, _I.TCP_FAILED): _to(_T.OVER),
    (_T.NEGOTIATING, _I.TIMER): _to(_T.TCP, _T.OVER),
    # Each direction moves. TCP is silent again when both have, and is attached as at the opening.
    (_T.RETURNING, _I.TCP_ON_RING): _to(_T.OPENING, _T.HELD, _T.OVER),
    (_T.RETURNING, _I.TCP_FLUSHED): _to(_T.OPENING, _T.HELD, _T.OVER),
    (_T.RETURNING, _I.TCP_MESSAGE): _to(_T.TCP),
    (_T.RETURNING, _I.TCP_END): _to(_T.TCP),
    (_T.RETURNING, _I.ABORT): _to(_T.OVER),
    (_T.RETURNING, _I.TCP_EOF): _to(_T.OVER),
    (_T.RETURNING, _I.TCP_FAILED): _to(_T.OVER),
    (_T.RETURNING, _I.TIMER): _to(_T.OVER),
}
