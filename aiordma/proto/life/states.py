"""The states of a stream's life: its directions, what carries it, its rings and its TCP connection.

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

_OVER = frozenset({_T.OVER})
_BACK = frozenset({_T.TCP})

#: Every change of :attr:`StreamLife.transport`: from where, by what, to where. Any other input leaves it as
#: it is. The model (``tests/proto/life``) fails on a change that is missing here.
TRANSITIONS: dict[tuple[Transport, Input], frozenset[Transport]] = {
    # opening
    (_T.OPENING, _I.TCP_ATTACHED): frozenset({_T.RING, _T.DRAINING, _T.EXCHANGING, _T.OVER}),
    (_T.OPENING, _I.LINK_FAILED): frozenset({_T.HELD, _T.OVER}),
    (_T.HELD, _I.TCP_ATTACHED): frozenset({_T.DRAINING, _T.EXCHANGING, _T.TCP, _T.OVER}),
    # leaving RDMA
    (_T.RING, _I.LEAVE): frozenset({_T.DRAINING}),
    (_T.RING, _I.LINK_FAILED): frozenset({_T.DRAINING, _T.OVER}),
    (_T.RING, _I.TCP_BYTES): frozenset({_T.DRAINING, _T.OVER}),
    (_T.DRAINING, _I.QUIESCED): frozenset({_T.EXCHANGING, _T.TCP, _T.OVER}),
    (_T.EXCHANGING, _I.TCP_BYTES): frozenset({_T.TCP, _T.OVER}),
    # a closed end that aborts stays until the peer's device has its last word
    (_T.DRAINING, _I.ABORT): frozenset({_T.RING, _T.OVER}),
    (_T.EXCHANGING, _I.ABORT): frozenset({_T.RING, _T.OVER}),
    # without the TCP connection nothing can leave: rings whose peer has finished are read on
    (_T.DRAINING, _I.TCP_EOF): frozenset({_T.RING, _T.OVER}),
    (_T.DRAINING, _I.TCP_FAILED): frozenset({_T.RING, _T.OVER}),
    (_T.DRAINING, _I.TIMER): frozenset({_T.RING, _T.OVER}),
    (_T.EXCHANGING, _I.TCP_EOF): frozenset({_T.RING, _T.OVER}),
    (_T.EXCHANGING, _I.TCP_FAILED): frozenset({_T.RING, _T.OVER}),
    (_T.EXCHANGING, _I.TIMER): frozenset({_T.RING, _T.OVER}),
    # coming back
    (_T.TCP, _I.REJOIN): frozenset({_T.NEGOTIATING}),
    (_T.TCP, _I.TCP_MESSAGE): frozenset({_T.NEGOTIATING, _T.OVER}),
    (_T.NEGOTIATING, _I.ESTABLISHED): frozenset({_T.RETURNING}),
    (_T.NEGOTIATING, _I.TCP_MESSAGE): frozenset({_T.RETURNING, _T.TCP, _T.OVER}),
    (_T.RETURNING, _I.TCP_FLUSHED): frozenset({_T.OPENING, _T.HELD, _T.OVER}),
    (_T.RETURNING, _I.TCP_ON_RING): frozenset({_T.OPENING, _T.HELD, _T.OVER}),
    # staying on TCP after all
    (_T.NEGOTIATING, _I.CLOSE): _BACK,
    (_T.NEGOTIATING, _I.REFUSED): _BACK,
    (_T.NEGOTIATING, _I.TCP_END): frozenset({_T.TCP, _T.OVER}),
    (_T.NEGOTIATING, _I.TIMER): frozenset({_T.TCP, _T.OVER}),
    (_T.RETURNING, _I.TCP_END): frozenset({_T.TCP, _T.OVER}),
    (_T.RETURNING, _I.TCP_MESSAGE): frozenset({_T.TCP, _T.OVER}),
    # the end of rings: the last words are exchanged, or what carried them is lost
    (_T.OPENING, _I.DELIVERED): _OVER,
    (_T.OPENING, _I.PEER_FLAGS): _OVER,
    (_T.HELD, _I.ABORT): _OVER,
    (_T.RING, _I.DELIVERED): _OVER,
    (_T.RING, _I.PEER_FLAGS): _OVER,
    (_T.RING, _I.TIMER): _OVER,
    (_T.RING, _I.TCP_EOF): _OVER,
    (_T.RING, _I.TCP_FAILED): _OVER,
    (_T.DRAINING, _I.PEER_FLAGS): _OVER,
    # the end of frames
    **{
        (state, what): _OVER
        for state, inputs in {
            _T.TCP: (_I.ABORT, _I.CLOSE, _I.TIMER, _I.TCP_END, _I.TCP_EOF, _I.TCP_FAILED, _I.TCP_FLUSHED),
            _T.NEGOTIATING: (_I.ABORT, _I.TCP_EOF, _I.TCP_FAILED),
            _T.RETURNING: (_I.ABORT, _I.TIMER, _I.TCP_EOF, _I.TCP_FAILED),
        }.items()
        for what in inputs
    },
}
