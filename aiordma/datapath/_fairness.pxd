# Table of contents of _starved.pyx (who waits for send work requests).
from libc.stdint cimport uint32_t

cdef class Starving:
    """Who waits for send WRs."""
    cdef bint starving                      # in the queue
    cdef bint promised                      # called, with a place kept for it
    cdef uint32_t promised_at
    cdef int wants(self) except -1          # WANTS_NOTHING_NOW, WANTS_A_CALL, WANTS_A_PLACE
    cdef void count_promise(self, int change) noexcept
    cdef int on_room(self) except -1        # some have come back

cdef enum:
    WANTS_NOTHING_NOW = 0   # what has come back is not enough for it
    WANTS_A_CALL = 1        # it does at once what it can
    WANTS_A_PLACE = 2       # a task of its user comes later: until then others may not take it

cdef class StarvedQueue:
    cdef object waiting                     # deque, first come first served
    cdef object kept                        # deque of those with a promise, the oldest first
    cdef uint32_t turn
    cdef bint in_turns                      # next_turn() is to be called in the next turn of the loop

    cdef void add(self, Starving who)
    cdef void remove(self, Starving who)
    cdef void came(self, Starving who)
    cdef int feed(self) except -1
    cdef int next_turn(self) except -1
    cdef void clear(self)
