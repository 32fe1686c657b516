# Table of contents of _ringleave.pyx (how a stream goes on without RDMA).
from libc.stdint cimport uint32_t

from ._ring_cursors cimport RingBase

cdef class RingLeave(RingBase):
    cdef int keep(self, const unsigned char *data, uint32_t n) except -1
    cdef int forget_kept(self) except -1
    cdef int shorten(self) except -1
