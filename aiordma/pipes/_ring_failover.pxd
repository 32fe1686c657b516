# Declarations of _ring_failover.pyx (what a ring pipe needs to leave RDMA).
from libc.stdint cimport uint32_t, uint64_t

from ..datapath._qp cimport QueuePair
from ..datapath._verbs cimport aio_chain
from ._ring_cursors cimport RingCursors

cdef enum:
    # How far a ring pipe has left RDMA.
    ON_RDMA = 0
    STOPPING = 1    # it sends nothing more; what was posted is under way
    QUIESCED = 2    # nothing is under way; cursor messages that still arrive are not applied
    LEFT = 3        # another transport carries on; the rest of the ring is still read

cdef class RingFailover:
    """How far a stream has left RDMA, and the sent bytes that are kept for that."""
    cdef int stage
    cdef object kept                        # deque of (send queue position, first byte, bytes), or None
    cdef bint holed                         # bytes that had to be kept were not, for want of memory,
    cdef uint32_t hole                      # ... up to this position of the send queue
    cdef bint outlived                      # the device takes what this process leaves, should it be killed
    cdef bint unproved                      # ... and has not carried out the last WRITE into this ring while it was posted
    cdef bint signalled                     # the last one that is kept completes with a completion
    cdef unsigned char *mirror              # copy of all that the peer has not read; NULL: none is needed
    cdef uint32_t mirror_size

    cdef int post(self, QueuePair qp, aio_chain *chain) except -1
    cdef int keep_unfinished(self, QueuePair qp, uint64_t prod, const unsigned char *data, uint32_t want) except -1
    cdef int keep(self, uint32_t position, uint64_t first, const unsigned char *data, uint32_t n) except -1
    cdef bint has_hole(self, QueuePair qp) noexcept
    cdef int release(self, QueuePair qp) except -1
    cdef uint32_t outlives(self, QueuePair qp, uint64_t prod, uint32_t free) noexcept
    cdef tuple ledger(self, RingCursors cursors, QueuePair qp)
    cdef bytes unplaced(self, RingCursors cursors, uint64_t start)
