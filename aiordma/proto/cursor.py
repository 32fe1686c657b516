# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The two ends of one ring: how much may be written, how much may be read (RFC 7609, section 4.4).

On the wire a cursor is a pair (wrap, count): ``count`` is the offset in the ring, ``wrap`` (16 bits) counts
how often the ring was filled. Inside, both ends count bytes since the connection began in 64 bits, which
never wrap and make full and empty different numbers; the pair is computed when a message is written and
checked when one is read.

A ring may be replaced by one of another size while the connection lives (``resize``). The pair keeps its
meaning: it counts in turns of the ring that the connection began with, so that a message means the same
before and after.

Everything here is also compiled (``cursor.pxd``): the methods of the data path touch no Python objects, take
no lock and raise nothing. A negative result is a refusal.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_RING_BYTES = 1 << 31


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in a ring as the wire and the tools show it."""

    wrap: int
    """How often the ring was filled, modulo 65536."""
    count: int
    """Offset in the ring, 0 <= count < size."""
    size: int
    """Size of the ring in bytes."""

    @classmethod
    def at(cls, total: int, size: int) -> Cursor:
        """The cursor ``total`` bytes after the beginning."""
        return cls(total // size & 0xFFFF, total % size, size)

    def advanced(self, n: int) -> Cursor:
        """The cursor ``n`` bytes further."""
        return Cursor.at(self.wrap * self.size + self.count + n, self.size)

    def distance_from(self, earlier: Cursor) -> int:
        """Bytes from ``earlier`` to here (modulo 65536 rings)."""
        ring_span = self.size << 16
        here = self.wrap * self.size + self.count
        return (here - (earlier.wrap * self.size + earlier.count)) % ring_span

    def __str__(self) -> str:
        return f"{self.wrap:04x}:{self.count:08x}"


def _check_size(size: int) -> int:
    if size < 1 or size > MAX_RING_BYTES or size & (size - 1):
        raise ValueError(f"a ring of {size} bytes: must be a power of two up to {MAX_RING_BYTES}")
    return size.bit_length() - 1


def _update_limit(size: int) -> int:
    return max(size // 10, min(2304, size // 4))


class TxWindow:
    """The writing end: our producer cursor and what the peer reported as consumed.

    :param size: size of the *peer's* ring in bytes, a power of two.
    :raises ValueError: another size.
    """

    def __init__(self, size: int) -> None:
        self.shift = _check_size(size)
        self.size = size
        self.mask = self.turn = size - 1
        self.prod = 0
        self.cons = 0
        self.blocked = 0
        self.blocked_told = 0

    def used(self) -> int:
        """Bytes written that the peer has not reported as consumed."""
        return self.prod - self.cons

    def free(self) -> int:
        """Bytes that may be written now."""
        return self.size - (self.prod - self.cons)

    def offset(self) -> int:
        """Where in the ring the next byte goes."""
        return self.prod & self.mask

    def contiguous(self) -> int:
        """Bytes that may be written at :meth:`offset` before the ring wraps or is full."""
        room = self.size - (self.prod - self.cons)
        to_end = self.size - (self.prod & self.mask)
        return to_end if to_end < room else room

    def produce(self, n: int) -> int:
        """``n`` bytes were written. Returns 0, or -1 when there is no room for them (and nothing changes)."""
        if n > self.size - (self.prod - self.cons):
            return -1
        self.prod += n
        return 0

    def peer_consumed(self, wrap: int, count: int) -> int:
        """The peer's consumer cursor. Returns the bytes that became free, or -1 when the cursor cannot be:
        outside the ring, behind the last one, or ahead of what was written."""
        if count > self.turn:
            return -1
        # A step back is a step of almost 65536 turns, which leads beyond what was written.
        step = (wrap - (self.cons >> self.shift)) & 0xFFFF
        target = (((self.cons >> self.shift) + step) << self.shift) + count
        if target < self.cons or target > self.prod:
            return -1
        freed = target - self.cons
        if freed:
            self.cons = target
            self.blocked = 0
            self.blocked_told = 0
        return freed

    def mark_blocked(self) -> int:
        """A writer waits for room. Returns 1 when a CDC message must inform the peer: there is some room,
        though less than the writer wants, so that the peer cannot see the need for an update by itself."""
        self.blocked = 1
        return 1 if self.blocked_told == 0 and 0 < self.free() else 0

    def resize(self, size: int) -> int:
        """The peer has named its ring, perhaps another one, and all that follows goes there. Returns 0, or -1
        when that cannot be: what was written and not reported as consumed would not fit, or ``size`` is no
        power of two."""
        if self.prod - self.cons > size or size == 0 or size & (size - 1) != 0:
            return -1
        self.size = size
        self.mask = size - 1
        return 0

    def wrap(self) -> int:
        """First half of our producer cursor."""
        return (self.prod >> self.shift) & 0xFFFF

    def count(self) -> int:
        """Second half of our producer cursor."""
        return self.prod & self.turn


class RxWindow:
    """The reading end: the peer's producer cursor and what we have consumed.

    :param size: size of *our* ring in bytes, a power of two.
    :param update_limit: consumed bytes beyond which the peer is informed (0: a tenth of the ring, as RFC 7609
        asks, but not less than 2304 bytes or a quarter of a small ring).
    :raises ValueError: another size, or a limit as large as the ring.
    """

    def __init__(self, size: int, update_limit: int = 0) -> None:
        self.shift = _check_size(size)
        if not 0 <= update_limit < size:
            raise ValueError(f"update_limit={update_limit}: must be less than the ring's {size} bytes")
        self.size = size
        self.mask = self.turn = size - 1
        self.prod = 0
        self.cons = 0
        self.told = 0
        self.update_limit = update_limit or _update_limit(size)
        #: Not 0: a writer waits there, for room (bit 0), or for the word that all of it was read (bit 1).
        self.peer_blocked = 0
        self.requested = 0

    def available(self) -> int:
        """Bytes that may be read now."""
        return self.prod - self.cons

    def offset(self) -> int:
        """Where in the ring the next unread byte is."""
        return self.cons & self.mask

    def contiguous(self) -> int:
        """Bytes that may be read at :meth:`offset` before the ring wraps or is empty."""
        unread = self.prod - self.cons
        to_end = self.size - (self.cons & self.mask)
        return to_end if to_end < unread else unread

    def consume(self, n: int) -> int:
        """``n`` bytes were read. Returns 0, or -1 when there are fewer (and nothing changes)."""
        if n > self.prod - self.cons:
            return -1
        self.cons += n
        return 0

    def peer_produced(self, wrap: int, count: int) -> int:
        """The peer's producer cursor. Returns the bytes that arrived, or -1 when the cursor cannot be:
        outside the ring, behind the last one, or so far ahead that unread bytes would be overwritten.

        The room that counts is what the peer was sent, not what was consumed since.
        """
        if count > self.turn:
            return -1
        step = (wrap - (self.prod >> self.shift)) & 0xFFFF
        target = (((self.prod >> self.shift) + step) << self.shift) + count
        if target < self.prod or target > self.told + self.size:
            return -1
        arrived = target - self.prod
        self.prod = target
        return arrived

    def resize(self, position: int, size: int) -> int:
        """Our ring is replaced, at a moment when the peer has written up to byte ``position`` and writes no
        more. Returns the bytes that arrived by that; -1 when ``position`` cannot be; -2 when what the peer
        may count as unread would not fit: then nothing changes."""
        if position < self.prod or position > self.told + self.size:
            return -1
        if position > self.told + size or size == 0 or size & (size - 1) != 0:
            return -2
        arrived = position - self.prod
        self.prod = position
        self.size = size
        self.mask = size - 1
        self.update_limit = _update_limit(size)
        return arrived

    def update_due(self) -> int:
        """1 when a CDC message must go out for the sake of our consumer cursor (otherwise it rides on the
        next one).

        To be asked after every :meth:`consume` and after every CDC message: a sender without room sleeps
        until it is told. Linux's rule (``smc_tx_consumer_update``), with two changes. A blocked writer is
        told the rest when everything was read, or it would wait for ever for room that exists. One that is
        not blocked is told when it sees a quarter of the ring free, not half: where its loop sleeps, the
        message wakes it for nothing, and the cursor of a request of half a ring rides on the reply.
        """
        if self.requested:
            return 1
        if self.cons == self.told:
            return 0
        unconfirmed = self.cons - self.told
        if self.peer_blocked and self.prod == self.cons:
            return 1
        if unconfirmed <= self.update_limit:
            return 0
        if self.peer_blocked:
            return 1
        return 1 if self.size - (self.prod - self.told) <= self.size >> 2 else 0

    def mark_told(self) -> None:
        """A CDC message with the current consumer cursor was made."""
        self.told = self.cons
        self.requested = 0
        if self.told == self.prod:
            self.peer_blocked &= 1

    def wrap(self) -> int:
        """First half of our consumer cursor."""
        return (self.cons >> self.shift) & 0xFFFF

    def count(self) -> int:
        """Second half of our consumer cursor."""
        return self.cons & self.turn
