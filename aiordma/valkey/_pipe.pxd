# Declarations of _pipe.pyx (a byte pipe by Valkey's RDMA protocol).
from libc.stdint cimport uint32_t, uint64_t

from ._requests cimport ValkeyRequests

cdef class ValkeyPipe(ValkeyRequests):
    cdef int check_sendable(self) except -1
    cdef bint stage(self, const unsigned char *data, uint32_t n) except -1
    cdef Py_ssize_t put(self, const unsigned char *data, Py_ssize_t n) except -1
    cdef Py_ssize_t place_object(self, data, Py_ssize_t start, bint polling) except -1
    cdef int copy_out(self, unsigned char *to, uint64_t n) except -1
    cdef int consumed(self, uint64_t n) except -1
    cdef object nothing(self, Py_ssize_t max_bytes)
    cdef bint busy_poll(self, bint reading) except -1
