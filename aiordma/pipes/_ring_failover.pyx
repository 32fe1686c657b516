# cython: language_level=3, boundscheck=False, wraparound=False
"""Leaving RDMA: how a stream over rings goes on over its TCP connection from the exact byte (carry.py drives it), when the link
breaks or on demand.

This side stops sending (``leaving``), settles what it has posted, notes where the rings stand (``frozen``),
and, when both ends agree, hands everything behind the ring's rest to another pipe (``onward``). For that, sent bytes are
kept until they are certain to lie in the peer's ring. Where all goes through registered memory, the mirror holds them until
the room is reused. The software device copies inline WRITEs while they are posted, and counts those of which that is not true:
only these are kept (``kept``).
"""
from collections import deque

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t

from ._ring_cursors cimport ABNORMAL_CLOSE, RingBase

from ..errors import Code, NegotiationError


cdef class RingLeave(RingBase):
    cdef bint may_leave(self):
        return (self.failure is None and self.cdc is not None and not self.finished and not self.peer_has(ABNORMAL_CLOSE)
                and not self.cdc.local_state & ABNORMAL_CLOSE)

    @property
    def can_leave(self) -> bool:
        """The stream is whole, so that another path can take it over."""
        return self.may_leave() and self.onward is None

    def come_back(self):
        """Have the stream come back to RDMA. :raises NegotiationError: it is not on TCP, or over."""
        self.shorten()
        if self.onward is None:
            raise NegotiationError(Code.OUT_OF_SYNC, "the stream is on RDMA")
        return self.onward.come_back()

    @property
    def target(self):
        """The pipe that does all the work, when this one does nothing any more but call it; else None."""
        return self.onward if self.finished else None

    @property
    def own_counters(self) -> tuple[int, int]:
        """Bytes sent and received by this pipe, without those of its successors."""
        return self.bytes_sent, self.bytes_received

    @property
    def counters(self) -> tuple[int, int]:
        """Bytes sent and received, here and by what has taken over."""
        beside = (0, 0) if self.onward is None else self.onward.counters
        return self.bytes_sent + beside[0], self.bytes_received + beside[1]

    cdef int shorten(self) except -1:
        """A stream may go to and fro often: leave out of the chain what only passes on."""
        while self.onward is not None and self.onward.target is not None:
            sent, received = self.onward.own_counters
            self.bytes_sent += sent
            self.bytes_received += received
            self.onward = self.onward.target
        return 0

    def leave(self, code, str text="") -> bool:
        """Have the stream leave RDMA and go on over its TCP connection; whether that has begun."""
        self.shorten()
        if self.onward is not None:
            return self.onward.leave(code, text)
        return self._own is not None and self._own.leave(code, text)

    def stop_sending(self) -> None:
        """Send no more by RDMA. When all that was posted has completed, or the link has failed, ``own.settled()`` is called,
        perhaps at once."""
        if self.frozen:
            self._own.settled()
            return
        self.leaving = True
        self.last_told = False
        if not self.qp.failed:
            self.tell_peer(True)
        else:
            self.settle()

    cdef int settle(self) except -1:
        if self.frozen:
            return 0
        if not self.qp.failed:
            if not self.last_told:
                return 0                        # in line for credit
            if not self.last_message_delivered:
                self.qp.wait_for_room(self)     # its completion brings us back through on_room()
                return 0
        self.frozen = True
        self._own.settled()
        return 0

    def ledger(self) -> tuple[int, int, int, int, int, int, int, int]:
        """Where the rings stand, in the order of ``proto.carry.Ledger``."""
        cdef uint64_t placed = self.tx.prod
        self.forget_kept()
        if self.kept:
            placed = self.kept[0][1]
        elif self.mirror != NULL and self.qp.failed:
            placed = self.tx.cons       # nobody knows which of the WRITEs arrived, but the mirror has them all
        return (self.tx.prod, placed, self.tx.cons, self.rx.prod, self.rx.told, self.rx_size, self.cdc.local_state & 0xc0,
                self.cdc.peer_state & 0xc0)

    def unplaced(self, uint64_t start) -> bytes:
        """The sent bytes from ``start`` on, which is not before what the ledger says is placed."""
        cdef uint32_t n = <uint32_t>(self.tx.prod - start), offset, first
        if n == 0:
            return b""
        if self.mirror != NULL:
            offset = <uint32_t>(start & (self.tx_size - 1))
            first = self.tx_size - offset
            if first > n:
                first = n
            return (self.mirror + offset)[:first] + self.mirror[:n - first]
        held = b"".join([piece for _, _, piece in self.kept])
        return held[start - <uint64_t>self.kept[0][1]:]

    def go_on(self, onward, uint64_t read_until, bint peer_closed) -> None:
        """The stream leaves RDMA: what is in the ring up to ``read_until`` is read first, all else goes through ``onward``."""
        self.rx.prod = read_until
        self.onward = onward
        self.kept = self.early = None
        self.shut = self.shut or peer_closed
        self.qp.unregister(self)
        if self.closed:
            onward.close()
        else:
            if self.eof_sent:
                onward.send_eof()
            onward.on_readable, onward.on_writable = self._on_readable, self._on_writable
        self.wake_readers()
        self.wake_writers()
        if self.closed or self.rx.available() == 0:
            self.end_on_link()

    cdef int keep(self, const unsigned char *data, uint32_t n) except -1:
        """The device has not carried these last n bytes out while they were posted: keep them until it has."""
        self.forget_kept()
        if self.kept is None:
            self.kept = deque()
        self.kept.append((self.qp.sq_posted, self.tx.prod - n, PyBytes_FromStringAndSize(<const char *>data, n)))
        return 0

    cdef int forget_kept(self) except -1:
        while self.kept and <int>(self.qp.sq_retired - <uint32_t>self.kept[0][0]) >= 0:
            self.kept.popleft()
        return 0
