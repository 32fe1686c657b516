from libc.stdint cimport int64_t, uint32_t

cdef extern from * nogil:
    """
    #if defined(__x86_64__) || defined(__i386__)
    #define aio_relax() __builtin_ia32_pause()
    #else
    #define aio_relax() __asm__ __volatile__("yield" ::: "memory")
    #endif
    """
    void aio_relax()

cdef extern from "<sched.h>" nogil:
    int sched_yield()


cdef class RunQueueDelay:
    cpdef int64_t read(self)


cdef class SpinPolicy:
    cdef readonly int64_t budget_ns             # what the next busy poll may take
    cdef int64_t longest_ns                 # of adaptive busy polls
    cdef int64_t would_have_paid_ns         # of sleeps in whose place a busy poll would have done
    cdef int64_t max_ns, parked_at, delayed_before
    cdef bint adaptive
    cdef uint32_t misses                        # busy polls in a row that found nothing
    cdef uint32_t penalty, rest                 # hints to ignore: after the next failure, and now
    cdef uint32_t parks
    cdef RunQueueDelay queue
    cpdef void set(self, int64_t fixed_ns)
    cdef inline void found(self) noexcept:
        """A busy poll found what it looked for."""
        self.misses = self.penalty = 0
    cpdef void found_after(self, int64_t took)
    cpdef void missed(self)
    cpdef void park(self, int64_t now)
    cpdef void woken(self, int64_t now)
