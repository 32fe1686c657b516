"""What is between the two ends in the model: links that may fail at either end, and a TCP connection.

A link keeps the order of RC: what is behind something that did not arrive does not arrive. Nothing orders a
link and TCP against each other. What was posted before one end's failure may land after it, for as long as
the other end of the link works.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Write(NamedTuple):
    """A WRITE into a ring."""

    channel: int
    position: int
    data: bytes


class Cdc(NamedTuple):
    """A cursor message."""

    channel: int
    sent: int
    read: int
    flags: int


class Link:
    """One queue pair at each end."""

    def __init__(self) -> None:
        self.failed = [False, False]
        #: To each end, what is under way.
        self.under_way: tuple[deque[Write | Cdc], deque[Write | Cdc]] = (deque(), deque())
        #: At each end, messages that were not polled yet.
        self.arrived: tuple[deque[Cdc], deque[Cdc]] = (deque(), deque())
        self.posted, self.acked = [0, 0], [0, 0]

    def post(self, end: int, item: Write | Cdc) -> int:
        """Its number, which ``acked`` reaches when the peer's device has it."""
        self.posted[end] += 1
        self.under_way[1 - end].append(item)
        return self.posted[end]

    def lands(self, end: int) -> Write | Cdc | None:
        """The next one reaches this end; None: its queue pair does not take it."""
        item = self.under_way[end].popleft()
        if self.failed[end]:
            self.under_way[end].clear()
            return None
        if not self.failed[1 - end]:
            self.acked[1 - end] += 1
        return item


class Tcp:
    """The connection: what the kernels hold of each direction, and how it ends.

    :param capacity: bytes that the kernels hold of each direction.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        #: To each end.
        self.held = [bytearray(), bytearray()]
        #: From each end.
        self.fin, self.closed = [False, False], [False, False]
        #: Each end gets an error.
        self.reset = [False, False]

    def room(self, end: int) -> int:
        """Bytes that the kernel takes of this end."""
        return max(0, self.capacity - len(self.held[1 - end]))

    def take(self, end: int, data: bytes) -> None:
        """This end has sent something."""
        if self.closed[1 - end] or self.reset[1 - end]:
            self.break_for(end)
        else:
            self.held[1 - end] += data

    def close(self, end: int, *, reset: bool = False) -> None:
        """As close() does it: with something unread, the peer gets a reset."""
        if self.closed[end]:
            return
        reset = reset or bool(self.held[end])
        self.closed[end] = True
        self.held[end].clear()
        if reset:
            self.break_for(1 - end)
        else:
            self.fin[end] = True

    def break_for(self, end: int) -> None:
        """This end gets a reset, and loses what it has not read."""
        if not self.closed[end]:
            self.reset[end] = True
            self.held[end].clear()
