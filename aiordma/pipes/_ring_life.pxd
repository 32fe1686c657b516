# Declarations of _ring_life.pyx (the state and the end of a ring pipe).
from libc.stdint cimport int64_t, uint32_t, uint64_t

from ..datapath._qp cimport Flow
from ..proto.cursor cimport RxWindow, TxWindow
from ._ring_cursors cimport RingCursors
from ._ring_failover cimport RingFailover

cdef class RingLife(Flow):
    cdef RingCursors cursors
    cdef TxWindow tx                        # those of the cursors; None until connect()
    cdef RxWindow rx
    cdef RingFailover failover
    cdef uint32_t rx_size, tx_size
    cdef public bint grows                  # owner.ring_turned() is to be called
    # the end
    cdef bint eof_sent, shut, closed, finished
    cdef bint alone                         # the peer never took part: it is not waited for at the end
    cdef bint last_posted                   # the last CDC before the end, or before leaving RDMA, has been posted ...
    cdef uint32_t last_position             # ... at this position of the send queue
    cdef bint posting                       # a failure of the link is noted in late_reason
    cdef object failure, late_reason
    cdef bint told                          # a reader has been told of the failure: nothing comes behind it
    cdef object early                       # a CDC that cannot be applied yet
    # what each end leaves to the other, should its process end
    cdef bint unread                        # counted in qp.unread: bytes have been announced, and not been read
    cdef uint32_t reads_ahead               # so many of them do not count
    cdef uint64_t data_at                   # number of the message that announced this end's last bytes
    cdef readonly object owner
    cdef public object on_finished
    cdef object _on_readable, _on_writable
    cdef public bint pushes                 # its owner is called from the loop, and does not poll
    cdef uint64_t sends, receives, times_blocked
    cdef bint waits                         # the last send found no room, ...
    cdef uint64_t blocked_cons              # ... when the peer had read so far, ...
    cdef int64_t blocked_at                 # ... for the first time then, by the loop's clock
    cdef readonly uint64_t bytes_sent, bytes_received

    cdef bint mark_blocked(self) noexcept
    cdef object nothing(self, Py_ssize_t max_bytes)
    cdef void mark_unread(self) noexcept
    cdef bint has_unread(self) noexcept
    cdef void judge_unread(self) noexcept
    cdef void forget_unread(self) noexcept
    cdef int announce(self, bint now) except -1
    cdef int take_early(self) except -1
    cdef void wake_readers(self)
    cdef void wake_writers(self)
    cdef int call(self, callback) except -1
    cdef int shut_down(self, unsigned int flags) except -1
    cdef int abort_after_fault(self) except -1
    cdef bint ended_whole(self) noexcept
    cdef int end_for_peer(self) except -1
    cdef int stay(self) except -1
    cdef bint last_delivered(self) noexcept
    cdef int close_with(self, bint abnormal) except -1
    cdef int finish_if_done(self) except -1
    cdef int finish(self) except -1
    cdef bint may_leave(self) noexcept
    cdef int quiesce(self) except -1
