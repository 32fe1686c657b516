# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Messages of a channel: sizes, and the credit that bounds what one end holds for the other.

A channel carries whole messages, in order. Each of them *costs* its bytes and a constant for what a message
takes besides; the receiver's budget limits the cost of what is sent and not yet handed to its user. What
was handed over is reported as a running total, so the next report makes up for one that is late or lost.

Compiled as well (``message.pxd``), on the rules of ``cursor.py``.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_HEAD_BYTES = 512
"""Longest ``head`` of one message."""
MESSAGE_OVERHEAD = _OVERHEAD = 64
"""What a message costs beside its bytes: an endless row of empty ones must find its end, too."""
_MASK = 0xFFFFFFFF  # running totals have 32 bits
SLOT_EXTRA_BYTES = 576
"""What a link's receives hold beyond ``Config.small_message_bytes``: a head, and the headers in front of
it. So a body of that size goes by SEND with any head."""


class ChannelStatistics(NamedTuple):
    """Counters of one end of a channel."""

    messages_sent: int
    messages_received: int
    #: payload bytes, heads included
    bytes_sent: int
    bytes_received: int
    #: messages that were announced and pulled rather than sent at once
    large_sent: int
    large_received: int
    #: of those received, the ones that went to memory that the user named
    large_placed: int
    #: calls of try_send() that returned False
    times_blocked: int
    #: cost of what the peer has not handed to its user yet, as far as this end knows
    outstanding: int
    #: most cost that ever waited here for this end's user
    receive_high_water: int


def check_size(head: int, size: int, most: int) -> None:
    """:raises ValueError: ``head`` bytes of head, or ``size`` bytes in all, are more than a message may
    have.
    """
    if head > MAX_HEAD_BYTES:
        raise ValueError(
            f"a message's head has {head} bytes, at most {MAX_HEAD_BYTES}: put the rest in its body"
        )
    if size > most:
        raise ValueError(
            f"a message of {size} bytes, at most {most}: raise Config.max_message_bytes, or send parts"
        )


class SendBudget:
    """The sender's half of a channel's credit.

    :param limit: cost that may be outstanding. A message that costs more may go when nothing else is.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.sent = 0
        self.reported = 0

    @property
    def outstanding(self) -> int:
        """Cost of what the peer has not reported as handed over."""
        return (self.sent - self.reported) & _MASK

    def allows(self, size: int) -> bool:
        """Whether a message of ``size`` bytes may be sent now."""
        outstanding = (self.sent - self.reported) & _MASK
        return outstanding == 0 or outstanding + size + _OVERHEAD <= self.limit

    def send(self, size: int) -> int:
        """It was sent. Returns the running total, which the peer's :attr:`told` must reach."""
        self.sent = (self.sent + size + _OVERHEAD) & _MASK
        return self.sent

    def receive_report(self, total: int) -> bool:
        """The peer reports how much it has handed over in all. False: more than was sent, or less than
        before.
        """
        if ((total - self.reported) & _MASK) > ((self.sent - self.reported) & _MASK):
            return False
        self.reported = total
        return True


class ReceiveBudget:
    """The receiver's half.

    :param limit: cost that this end holds at most for its user, but for one message that costs more.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.received = 0
        self.taken = 0
        self.reported = 0
        self.high_water = 0

    @property
    def waiting(self) -> int:
        """Cost of what has come and was not handed over."""
        return (self.received - self.taken) & _MASK

    def receive(self, size: int) -> bool:
        """A message of ``size`` bytes has come. False: the peer sends more than it may."""
        open_ = (self.received - self.reported) & _MASK
        if open_ and open_ + size + _OVERHEAD > self.limit:
            return False
        self.received = (self.received + size + _OVERHEAD) & _MASK
        waiting = (self.received - self.taken) & _MASK
        if waiting > self.high_water:
            self.high_water = waiting
        return True

    def take(self, size: int) -> bool:
        """A message was handed over. Whether so much is unreported that a report is due."""
        self.taken = (self.taken + size + _OVERHEAD) & _MASK
        return ((self.taken - self.reported) & _MASK) >= self.limit >> 2

    def report(self) -> int:
        """The running total, which goes to the peer now."""
        self.reported = self.taken
        return self.taken
