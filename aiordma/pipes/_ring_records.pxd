# Declarations of _ring_records.pyx (message boundaries on a ring).
from libc.stdint cimport uint32_t, uint64_t

from ._ring_records_send cimport RecordSender

cdef class RingDatagrams(RecordSender):
    cdef bint faulty
    cdef object reader                      # RecordReader, once the connection has left RDMA
    cdef bint reader_done                   # the peer has finished, over TCP
    cdef uint32_t max_receive
    cdef readonly uint64_t messages_received

    cdef Py_ssize_t arrived(self) except -2
    cdef Py_ssize_t arrived_elsewhere(self) except -2
    cdef object take(self, Py_ssize_t n)
    cdef object nothing(self)
    cdef int fault(self, object reason) except -1
