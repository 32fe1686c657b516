# cython: language_level=3, boundscheck=False, wraparound=False
"""What a ring pipe needs to leave RDMA from the exact byte: its stage, and the bytes that it may have to resend.

The pipe stops sending (STOPPING) and waits until nothing that it posted is under way (QUIESCED). Its ledger then says
where the rings stand. When both ends agree on a byte (``links/failover``), everything behind it travels on another
transport (LEFT).

Sent bytes are kept until they are certain to lie in the peer's ring. Where they go through registered memory, the
mirror holds them until the room is reused. The software device copies inline WRITEs while they are posted, and counts
those for which that is not true: only these are kept here.
"""
from collections import deque

from libc.stdint cimport uint32_t, uint64_t

from ..datapath._qp cimport QueuePair
from ..datapath._verbs cimport aio_chain, aio_chain_signal_last
from ..verbs._copy cimport bytes_of
from ._ring_cursors cimport CLOSED, SENDING_DONE, RingCursors


cdef enum:
    # What the software device keeps for another process that has not mapped a ring yet (SOFT_REQ_RING in softdev/src/shm/
    # lane.h), less the headers: with it, what was accepted outlives this process.
    KEPT_BY_DEVICE = 112 * 1024


cdef class RingFailover:
    cdef int post(self, QueuePair qp, aio_chain *chain) except -1:
        """Post a WRITE that the device copies. Where the next one may have to wait for it, it completes with a completion."""
        if self.unproved:
            aio_chain_signal_last(chain)
            qp.sq_unsignalled = 0
        return qp.post(chain)

    cdef int keep_unfinished(self, QueuePair qp, uint64_t prod, const unsigned char *data, uint32_t want) except -1:
        """Keep the last ``want`` bytes, up to ``prod``, if the device did not carry them out while they were posted."""
        if qp.astray[0] != qp.astray_seen or qp.failed or qp.diverted:
            qp.astray_seen = qp.astray[0]
            self.signalled, self.unproved = self.unproved, self.outlived
            self.release(qp)
            self.keep(qp.sq_posted, prod - want, data, want)
        elif self.unproved or self.kept is not None:
            self.unproved = False
            self.kept = None        # this WRITE is done, and so are those before it
        return 0

    cdef int keep(self, uint32_t position, uint64_t first, const unsigned char *data, uint32_t n) except -1:
        """Keep n bytes of the stream, from byte ``first`` on, until the send queue has completed ``position``."""
        try:
            if self.kept is None:
                self.kept = deque()
            self.kept.append((position, first, bytes_of(data, n)))
        except MemoryError:
            # They are out already, so their sender must not hear of it. But until they have arrived for certain, the
            # stream cannot leave RDMA.
            self.holed, self.hole = True, position
        return 0

    cdef bint has_hole(self, QueuePair qp) noexcept:
        """Whether bytes that might have to be sent again were not kept."""
        if self.holed and not qp.refused and qp.is_done(self.hole):
            self.holed = False
        return self.holed

    cdef int release(self, QueuePair qp) except -1:
        """Drop what was kept of requests that have completed. One that was refused has no position of its own: it seems to
        have completed together with those before it."""
        while self.kept and not qp.refused and qp.is_done(<uint32_t>self.kept[0][0]):
            self.kept.popleft()
        return 0

    cdef uint32_t outlives(self, QueuePair qp, uint64_t prod, uint32_t free) noexcept:
        """Of ``free`` bytes those that the peer has even if this process is killed at once, where its device sees to that:
        behind what the device did not carry out while it was posted, no more than it keeps beside the rings."""
        cdef uint32_t held = 0
        self.release(qp)
        if self.kept:
            held = <uint32_t>(prod - <uint64_t>self.kept[0][1])
        if held < KEPT_BY_DEVICE:
            return min(free, KEPT_BY_DEVICE - held)
        return 0 if self.signalled else min(free, 1)    # else no completion would tell of the room

    cdef tuple ledger(self, RingCursors cursors, QueuePair qp):
        """Where the rings stand, in the order of ``proto.failover.Ledger``."""
        cdef uint64_t placed = cursors.tx.prod
        cdef unsigned int flags = SENDING_DONE | CLOSED
        self.release(qp)
        if self.kept:
            placed = self.kept[0][1]
        elif self.mirror != NULL and qp.failed:
            placed = cursors.tx.cons        # which of the WRITEs arrived is not known, but the mirror has them all
        return (cursors.tx.prod, placed, cursors.tx.cons, cursors.rx.prod, cursors.rx.told, cursors.rx.size,
                cursors.cdc.local_state & flags, cursors.cdc.peer_state & flags)

    cdef bytes unplaced(self, RingCursors cursors, uint64_t start):
        """The sent bytes from ``start`` on, which is not before what the ledger calls placed."""
        cdef uint32_t n = <uint32_t>(cursors.tx.prod - start), offset, first
        if n == 0:
            return b""
        if self.mirror != NULL:
            offset = <uint32_t>(start & (self.mirror_size - 1))
            first = self.mirror_size - offset
            if first > n:
                first = n
            return (self.mirror + offset)[:first] + self.mirror[:n - first]
        held = b"".join([piece for _, _, piece in self.kept])
        return held[start - <uint64_t>self.kept[0][1]:]
