# Declarations of _ring.pyx (station 2 of the path of a byte, and its end).
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from ..datapath._qp cimport Flow
from ..datapath._verbs cimport aio_chain
from ..proto.cursor cimport RxWindow, TxWindow
from ._ring_cursors cimport RingCursors
from ._ring_failover cimport RingFailover

@cython.final
cdef class RingPipe(Flow):
    cdef RingCursors cursors
    cdef TxWindow tx                        # those of the cursors; None until connect()
    cdef RxWindow rx
    cdef RingFailover failover
    # the rings
    cdef unsigned char *rx_memory
    cdef uint32_t rx_size, tx_size
    cdef uint64_t tx_addr
    cdef uint32_t tx_rkey
    cdef unsigned char *mirror              # local copy of what is under way; NULL where everything goes inline
    cdef uint32_t mirror_lkey
    cdef uint64_t mirror_free_to            # bytes whose WRITEs have completed: the rest of the mirror is the device's
    cdef uint32_t mirror_busy               # WRITEs from the mirror that have not completed
    cdef uint32_t step                      # most bytes that one WRITE places
    cdef uint32_t fragment
    cdef uint32_t turn, firsts              # of the loop, and how many more writes it announces at once
    cdef bint put_off                       # some of this turn were not
    cdef uint32_t read_step                 # most bytes that are read before their room is announced
    # rings that change (_ring_resize.pyx)
    cdef bint paused                        # nothing may be written until the peer names its ring
    cdef bint viewed                        # a view of the ring is out
    cdef public bint grows                  # owner.ring_turned() is to be called
    cdef uint32_t room_sleeps               # how often credit woke a sleeping writer (see wants() in _ring_resize.pyx)
    cdef uint64_t turned_at                 # bytes received when it was called last
    # the end
    cdef bint eof_sent, shut, closed, finished
    cdef bint alone                         # the peer never took part: it is not waited for at the end
    cdef bint last_posted                   # the last CDC before the end, or before leaving RDMA, has been posted ...
    cdef uint32_t last_position             # ... at this position of the send queue
    cdef bint posting                       # a failure of the link is noted in late_reason
    cdef object failure, late_reason
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

    cpdef Py_ssize_t try_send(self, data, Py_ssize_t start=*) except -1
    cpdef object try_receive(self, Py_ssize_t max_bytes)
    cpdef Py_ssize_t try_receive_into(self, buffer) except -2
    cpdef object view(self)
    cpdef object consume(self, Py_ssize_t n)

    cdef int check_sendable(self) except -1
    cdef Py_ssize_t put_bytes(self, const unsigned char *data, Py_ssize_t n) except -1
    cdef bint comes_first(self) noexcept
    cdef int note_failure(self, Py_ssize_t placed) except -1
    cdef int give_way(self) except -1
    cdef int post_copied(self, aio_chain *chain, uint32_t want) except -1
    cdef int keep_unfinished(self, const unsigned char *data, uint32_t want) except -1
    cdef int count_placed(self, Py_ssize_t placed, Py_ssize_t n) except -1
    cdef bint mark_blocked(self) noexcept
    cdef uint32_t room(self) noexcept
    cdef int copy_out(self, unsigned char *to, uint32_t n) except -1
    cdef int consumed(self, uint32_t n) except -1
    cdef void leave_will(self) noexcept
    cdef void mark_unread(self) noexcept
    cdef void judge_unread(self) noexcept
    cdef void forget_unread(self) noexcept
    cdef object nothing(self, Py_ssize_t max_bytes)
    cdef int announce(self, bint now) except -1
    cdef int post_cdc(self) except -1
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
