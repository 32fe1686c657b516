# C types of turns.py.
cimport cython
from libc.stdint cimport int64_t
from ._cancelled cimport CancelCheck
from ._clock cimport Clock


cdef class Turns:
    cdef public long share
    cdef readonly Clock clock
    cdef long _whole_share
    cdef int64_t _share_ends
    cdef CancelCheck _check
    cdef object _ask

    cdef bint is_cancelled(self) except -1
    cpdef bint may_begin(self) except -1
    cpdef count(self, long more)
    @cython.locals(share=cython.long)
    cpdef count_polled(self, long more)
