# Declarations of _ring_placing.pyx (a writer whose next bytes go into a buffer of the peer's user).
from libc.stdint cimport uint32_t, uint64_t

from ..datapath._qp cimport QueuePair
from ._ring_cursors cimport RingCursors

cdef enum:
    PLACE_STEP = 1 << 20    # most bytes of one call: others of the loop want their turn
    FIRST_BYTES = 4096      # of the first WRITE

cdef class Placing:
    """Where the bytes up to ``TxWindow.placed_until`` go."""
    cdef uint64_t first                     # the byte of the stream that the buffer begins with
    cdef uint64_t addr
    cdef uint32_t rkey
    cdef uint32_t most                      # bytes of the next WRITE
    cdef uint64_t at_once                   # bytes that were carried out while they were posted
    cdef bint waits                         # a WRITE was not carried out at once: no other before it has completed ...
    cdef uint32_t wait_until                # ... at this position of the send queue

    cdef bint may_write(self, QueuePair qp) noexcept
    cdef bint covers(self, RingCursors cursors, uint64_t remote_addr) noexcept
    cdef uint32_t write(self, QueuePair qp, RingCursors cursors, const unsigned char *data, Py_ssize_t n,
                        bint announce) except? 0
    cdef void written(self, QueuePair qp, uint32_t n, bint at_once) noexcept
    cdef bint was_slow(self, RingCursors cursors) noexcept
