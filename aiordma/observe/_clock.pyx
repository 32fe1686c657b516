# cython: language_level=3
"""The tracer of calls with the system's own clock: a traced call looks at it eight times."""
from libc.stdint cimport int64_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from aiordma.proto.trace cimport Tracer


cdef class ClockTracer(Tracer):
    """The clock is that of ``time.monotonic_ns``; it is read without Python."""

    cdef int64_t _now(self) except? -1:
        cdef timespec now
        clock_gettime(CLOCK_MONOTONIC, &now)
        return <int64_t>now.tv_sec * 1_000_000_000 + now.tv_nsec
