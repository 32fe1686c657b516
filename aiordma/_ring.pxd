# Table of contents of _ring.pyx (station 2 of the path of a byte, and both cursors of a stream).
from libc.stdint cimport uint16_t, uint32_t, uint64_t

from ._qp cimport Connection
from ._verbs cimport aio_chain
from .proto.cdc cimport CdcConnection, CdcMessage
from .proto.cursor cimport RxWindow, TxWindow

cdef class RingPipe(Connection):
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
    cdef uint32_t fragment, untold          # bytes placed since the last CDC
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

    cdef Py_ssize_t place(self, const unsigned char *data, Py_ssize_t n) except -1
    cdef bint _spin(self, bint reading, uint32_t least=*) except -1
    cdef bint peer_has(self, unsigned int flags) noexcept
    cdef int shut_down(self, unsigned int flags) except -1
    cdef int abort_after_fault(self) except -1
    cdef int post_cdc(self) except -1
    cdef bint _holds(self, bint reading, uint32_t least)
    cdef uint32_t room(self) noexcept
    cdef void build_cdc(self)
    cdef int tell_peer(self, bint now) except -1
    cdef int copy_out(self, unsigned char *to, uint32_t n) except -1
    cdef int consumed(self, uint32_t n) except -1
    cdef int check_sendable(self) except -1
    cdef int finish_if_done(self) except -1
    cdef int keep(self, const unsigned char *data, uint32_t n) except -1
    cdef int forget_kept(self) except -1
    cdef bint may_leave(self)
    cdef int settle(self) except -1
    cdef int end_on_link(self) except -1
    cdef int shorten(self) except -1
    cdef void wake_readers(self)
    cdef void wake_writers(self)
