from libc.stdint cimport int64_t


cdef class Clock:
    cdef readonly bint real
    cdef int64_t ns(self) noexcept nogil


cdef class GivenClock(Clock):
    cdef object read, holder
    cdef int64_t last
    cdef int64_t ask(self) noexcept
