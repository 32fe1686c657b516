# Declarations of _ring_polling.pyx (hybrid polling on a ring pipe).
from libc.stdint cimport uint32_t

from ._ring cimport RingPipe

cdef bint busy_poll(RingPipe ring, bint reading, uint32_t least) except -1
cdef Py_ssize_t poll_send(RingPipe ring, data, Py_ssize_t start) except -1
cdef object poll_receive(RingPipe ring, Py_ssize_t max_bytes)
