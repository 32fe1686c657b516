# Table of contents of _ring.pyx (station 2 of the path of a byte, and its end).
from libc.stdint cimport uint32_t

from ._ring_failover cimport RingLeave

cdef class RingPipe(RingLeave):
    cdef Py_ssize_t place(self, const unsigned char *data, Py_ssize_t n) except -1
    cdef int check_sendable(self) except -1
    cdef bytes gather(self, uint32_t n, uint32_t most)
    cdef int copy_out(self, unsigned char *to, uint32_t n) except -1
    cdef int consumed(self, uint32_t n) except -1
    cdef bint _spin(self, bint reading, uint32_t least=*) except -1
    cdef bint _holds(self, bint reading, uint32_t least)
