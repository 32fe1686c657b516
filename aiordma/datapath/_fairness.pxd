# Declarations of _fairness.pyx (fair use of the send queues, and of what a batch of completions calls).
from libc.stdint cimport uint32_t, uint64_t

cdef class BatchReceiver:
    """What is called once for all that a batch of completions brought."""
    cdef uint64_t batch                     # the last one that it was noted for
    cdef int end_of_batch(self) except -1

cdef class SendQueueWaiter(BatchReceiver):
    """What waits for free send work requests."""
    cdef bint waits_for_room                # in the queue
    cdef bint reserved                      # it was called and holds a reservation
    cdef uint32_t reserved_at
    cdef int need(self) except -1           # NEEDS_MORE_ROOM, NEEDS_CALL or NEEDS_RESERVATION
    cdef void count_reservation(self, int change) noexcept
    cdef int on_room(self) except -1        # work requests have completed

cdef enum:
    NEEDS_MORE_ROOM = 0     # what has completed is not enough
    NEEDS_CALL = 1          # on_room() uses the room at once
    NEEDS_RESERVATION = 2   # a task of the user sends later: until then others may not take the room

cdef class FairQueue:
    cdef object waiting                     # deque, first come, first served
    cdef object reserved                    # deque of waiters with a reservation, the oldest first
    cdef uint32_t turn
    cdef bint needs_next_turn               # next_turn() is to be called in the next turn of the loop

    cdef void add(self, SendQueueWaiter waiter)
    cdef void remove(self, SendQueueWaiter waiter)
    cdef void end_reservation(self, SendQueueWaiter waiter)
    cdef int serve(self) except -1
    cdef int next_turn(self) except -1
    cdef void clear(self)
