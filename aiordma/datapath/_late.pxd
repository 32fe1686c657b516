# Declarations of _late.pyx (deferred work of blocked event loops).

cdef class LateWork:
    """Who has deferred work that a blocked event loop would keep."""
    cdef object __weakref__
    cdef int late_slot
    cdef void work_waits(self)              # some was deferred, and none was before
    cdef void work_done(self) noexcept      # none is any more
    cdef void no_more_work(self)
    cdef bint help(self) except -1
