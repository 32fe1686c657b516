# Declarations of _hybrid.pyx (hybrid polling).
from libc.stdint cimport uint64_t

from .._cq cimport CompletionPoller

# Whether what an operation of `who` waits for is there.
ctypedef bint (*look_fn)(void *who, uint64_t what) noexcept

cdef enum:
    NOTHING = 0
    FOUND = 1
    OTHERS = 2

cdef int hybrid_poll(CompletionPoller cq, look_fn found, void *who, uint64_t what) except -1
