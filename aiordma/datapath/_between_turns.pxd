# Declarations of _between_turns.pyx (polling between turns of the event loop).
from libc.stdint cimport int64_t

from ._spin cimport SpinPolicy

cdef class BetweenTurns:
    cdef readonly SpinPolicy policy
    cdef bint expecting                     # since the last turn a transport was served, or has sent
    cdef int64_t since                      # when the wait began; 0: there is none
    cdef int64_t gained                     # by polling, since the CPU was last lost to others
    cdef int64_t rest, rests_until
    cdef bint owing                         # something was sent, and nothing has come since
    cdef bint idle                          # in this wait, there was a turn in which the loop had nothing else to do
    cdef readonly bint crowded              # much is in flight: work may accumulate
    cdef int overlaps                       # sends in a wait for an answer, less the answers
    cdef readonly unsigned long long waits, hits, rests

    cdef inline bint is_active(self) noexcept:
        """Whether the engine's next turn in the loop has to look."""
        return self.expecting or self.since != 0

    cpdef bint expect(self, int64_t now) noexcept
    cpdef bint sent(self, int64_t now) noexcept
    cpdef void found(self, int64_t now)
    cpdef int64_t look(self, int64_t now)
    cpdef int64_t yielded(self, int64_t before, int64_t now)
    cdef void rest_for(self, int64_t now, int64_t rest) noexcept
    cpdef void stop(self) noexcept
