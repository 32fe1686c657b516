"""Large transfers in small pieces, fair between connections (X-RDMA's flow control).

A transfer is cut into fragments (64 KiB by default). Of all of them only N are on the device at a time, and
lanes (QPs whose READs are limited by ``max_rd_atomic``) have limits of their own. Connections take turns,
fragment by fragment, so a small transfer never waits for a large one to end. Pure scheduling: the owner posts
what :meth:`FairQueue.take` gives and reports completions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from .errors import LocalProtocolError

__all__ = ["FairQueue", "Fragment", "Transfer"]

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True, eq=False)
class Transfer(Generic[K]):
    """One transfer, as the queue keeps it."""

    connection: K
    """Whose turn it takes."""
    lane: Hashable
    """What carries it."""
    length: int
    """Bytes in all; 0 is one empty fragment."""
    taken: int = 0
    """Bytes handed out as fragments."""
    outstanding: int = 0
    """Fragments handed out and not completed."""
    started: bool = False
    """Some fragment was handed out."""
    cancelled: bool = False
    """No further fragment will be handed out."""

    @property
    def finished(self) -> bool:
        """Nothing is left to hand out and nothing is outstanding: its memory is the owner's again."""
        exhausted = self.cancelled or (self.started and self.taken == self.length)
        return exhausted and self.outstanding == 0


@dataclass(frozen=True, slots=True)
class Fragment(Generic[K]):
    """One piece to post."""

    transfer: Transfer[K]
    offset: int
    """Where in the transfer it begins."""
    length: int
    """Its size in bytes."""


class FairQueue(Generic[K]):
    """Fragments of many connections under one limit.

    :param limit: fragments outstanding in all.
    :param fragment_bytes: size of a fragment (the last of a transfer may be shorter).
    :raises ValueError: a limit or size below 1.
    """

    def __init__(self, limit: int, fragment_bytes: int = 65536) -> None:
        if limit < 1 or fragment_bytes < 1:
            raise ValueError(f"limit={limit}, fragment_bytes={fragment_bytes}: both must be at least 1")
        self._limit = limit
        self._fragment_bytes = fragment_bytes
        self._outstanding = 0
        self._queues: dict[K, deque[Transfer[K]]] = {}
        self._turns: deque[K] = deque()  # connections whose next fragment may go when the limit allows
        self._lane_limit: dict[Hashable, int] = {}
        self._lane_out: dict[Hashable, int] = {}
        self._lane_waits: dict[Hashable, deque[K]] = {}  # connections that wait for their lane

    @property
    def outstanding(self) -> int:
        """Fragments handed out and not completed."""
        return self._outstanding

    @property
    def waiting(self) -> int:
        """Connections that have fragments to hand out."""
        return len(self._queues)

    def set_limit(self, limit: int) -> None:
        """Change the limit; what is outstanding stays so.

        :raises ValueError: below 1.
        """
        if limit < 1:
            raise ValueError(f"limit={limit}: must be at least 1")
        self._limit = limit

    def set_lane_limit(self, lane: Hashable, limit: int) -> None:
        """At most ``limit`` fragments outstanding on ``lane`` (READs: the lesser ``max_rd_atomic`` of both
        ends).

        :raises ValueError: below 1.
        """
        if limit < 1:
            raise ValueError(f"limit={limit} of lane {lane!r}: must be at least 1")
        self._lane_limit[lane] = limit
        self._turns.extend(self._lane_waits.pop(lane, ()))

    def submit(self, connection: K, length: int, lane: Hashable = None) -> Transfer[K]:
        """Add a transfer; those of one connection go in order.

        :raises ValueError: a negative length.
        """
        if length < 0:
            raise ValueError(f"length={length}: a transfer cannot be shorter than nothing")
        transfer = Transfer(connection, lane, length)
        queue = self._queues.get(connection)
        if queue is None:
            queue = self._queues[connection] = deque()
            self._turns.append(connection)
        queue.append(transfer)
        return transfer

    def take(self) -> Fragment[K] | None:
        """The next fragment to post, or None when nothing may go now."""
        if self._outstanding >= self._limit:
            return None
        while self._turns:
            connection = self._turns.popleft()
            queue = self._queues[connection]
            transfer = queue[0]
            lane = transfer.lane
            out = self._lane_out.get(lane, 0)
            if out >= self._lane_limit.get(lane, self._limit):
                self._lane_waits.setdefault(lane, deque()).append(connection)
                continue
            size = min(self._fragment_bytes, transfer.length - transfer.taken)
            fragment = Fragment(transfer, transfer.taken, size)
            transfer.taken += size
            transfer.started = True
            transfer.outstanding += 1
            self._outstanding += 1
            self._lane_out[lane] = out + 1
            if transfer.taken == transfer.length:
                queue.popleft()
            if queue:
                self._turns.append(connection)
            else:
                del self._queues[connection]
            return fragment
        return None

    def done(self, fragment: Fragment[K]) -> bool:
        """A fragment has completed (or was flushed). Returns whether its transfer is finished.

        :raises LocalProtocolError: nothing of this transfer is outstanding.
        """
        transfer = fragment.transfer
        if transfer.outstanding == 0:
            raise LocalProtocolError("a fragment was completed twice")
        transfer.outstanding -= 1
        self._outstanding -= 1
        lane = transfer.lane
        left = self._lane_out[lane] - 1
        if left:
            self._lane_out[lane] = left
        else:
            del self._lane_out[lane]
        waits = self._lane_waits.get(lane)
        if waits:
            self._turns.append(waits.popleft())
            if not waits:
                del self._lane_waits[lane]
        return transfer.finished

    def cancel(self, connection: K) -> list[Transfer[K]]:
        """Hand out nothing more of ``connection``. Returns its transfers that are finished by this: the
        others are when their last outstanding fragment completes, for until then the device may use their
        memory."""
        queue = self._queues.pop(connection, None)
        if queue is None:
            return []
        lane = queue[0].lane
        waits = self._lane_waits.get(lane)
        if waits is not None and connection in waits:
            waits.remove(connection)
            if not waits:
                del self._lane_waits[lane]
        else:
            self._turns.remove(connection)
        for transfer in queue:
            transfer.cancelled = True
        return [transfer for transfer in queue if transfer.finished]

    def drop_lane(self, lane: Hashable) -> None:
        """Forget the limit of a lane that is gone. Its fragments must still be completed by the owner."""
        self._lane_limit.pop(lane, None)
        self._turns.extend(self._lane_waits.pop(lane, ()))
