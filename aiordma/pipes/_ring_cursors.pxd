# Table of contents of _ringbase.pyx (both cursors of a stream).
from libc.stdint cimport uint32_t, uint64_t

from ..datapath._qp cimport Flow
from ..proto.cdc cimport CdcConnection, CdcMessage
from ..proto.cursor cimport RxWindow, TxWindow

cdef enum:
    # state flags (proto/cdc.py, StateFlag)
    SENDING_DONE = 0x80
    CLOSED = 0x40
    ABNORMAL_CLOSE = 0x20

cdef class RingBase(Flow):
    """Everything that a pipe over rings knows, and the cursor messages."""
    cdef TxWindow tx                        # how far we have written into the peer's ring, how far it has read
    cdef RxWindow rx                        # how far the peer has written into ours, how far we have read
    cdef CdcConnection cdc                  # None until connect()
    cdef CdcMessage incoming
    cdef unsigned char *rx_memory
    cdef uint32_t rx_size, tx_size
    cdef uint64_t tx_addr
    cdef uint32_t tx_rkey
    cdef unsigned char *mirror              # local copy of what is under way; NULL where everything goes inline
    cdef uint32_t mirror_lkey
    cdef uint64_t mirror_free_to            # bytes whose WRITEs have completed: the rest of the mirror is the device's
    cdef uint32_t mirror_busy               # WRITEs from the mirror that have not completed
    cdef uint32_t fragment, step, give_back # most bytes of a WRITE, of what is placed at once, of what is read at once
    cdef uint32_t untold                    # bytes placed since the last CDC
    cdef uint32_t closing_position          # send queue position of the last CDC
    cdef bint tell, eof_sent, shut, closed, finished, last_told, alone
    cdef bint leaving, frozen               # RDMA is being left: nothing is sent any more; nothing heard is believed any more
    cdef bint posting                       # a failure of the link is noted in late_reason
    cdef object failure, late_reason
    cdef object kept                        # deque of (send queue position, first byte, bytes): not certain to be placed; or None
    cdef object onward                      # the pipe that has taken over behind the ring's rest, or None
    cdef public object on_finished
    cdef object _on_readable, _on_writable
    cdef object _own, early
    cdef readonly uint64_t sends, receives, bytes_sent, bytes_received, cdcs_sent, cdcs_received, times_blocked
    cdef readonly uint32_t rx_high_water

    cdef uint32_t room(self) noexcept
    cdef bint peer_has(self, unsigned int flags) noexcept
    cdef void build_cdc(self)
    cdef int tell_peer(self, bint now) except -1
    cdef int post_cdc(self) except -1
    cdef int shut_down(self, unsigned int flags) except -1
    cdef int abort_after_fault(self) except -1
    cdef int finish_if_done(self) except -1
    cdef int end_on_link(self) except -1
    cdef void wake_readers(self)
    cdef void wake_writers(self)
    # _ringleave.pyx
    cdef bint may_leave(self)
    cdef int settle(self) except -1
