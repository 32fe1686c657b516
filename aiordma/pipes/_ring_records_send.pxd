# Declarations of _ring_records_send.pyx (the sending half of messages on a ring).
from libc.stdint cimport uint32_t, uint64_t

from .._cq cimport CompletionOwner
from ._ring cimport RingPipe
from ._switchable cimport SwitchablePipe

cdef enum:
    HEADER = 4                              # of a record (proto/record.py)

cdef class RecordSender(CompletionOwner):
    cdef SwitchablePipe pipe
    cdef RingPipe rings                     # where the pipe begins: records go straight into them, until it leaves RDMA
    cdef unsigned char *stage               # records that go out in one WRITE
    cdef uint32_t staged
    cdef object rest                        # the part of a large message that the device had no room for yet
    cdef Py_ssize_t rest_at
    cdef bint dirty, posting, blocked, watching
    cdef bint counted                       # of the link's flows with staged messages
    cdef bint lost                          # off RDMA: what was accepted cannot be sent any more
    cdef object failure                     # off RDMA: how the peer broke the protocol of datagrams
    cdef int ending                         # EOF or CLOSE, put off until everything accepted is placed
    cdef readonly uint32_t max_message_bytes
    cdef object _on_writable
    cdef readonly uint64_t messages_sent, times_blocked, posts

    cdef int check(self) except -1
    cdef bint put(self, const unsigned char *data, Py_ssize_t n, object owner) except -1
    cdef Py_ssize_t put_bytes(self, const unsigned char *data, Py_ssize_t n) except -1
    cdef int push(self) except -1
    cdef bint is_lost(self) noexcept
    cdef bint refuse(self) except -1
    cdef int watch(self) except -1
    cdef int push_all(self) except -1
    cdef void uncount(self) noexcept
    cdef int end(self) except -1
    cdef int break_off(self, object error) except -1
