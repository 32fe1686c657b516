# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""Fair use of the send queues: flows that find no free send work request wait in one queue for all QPs of an engine.

FIFO wake-up alone starves waiters whose task does the sending. Such a task runs in a later turn of the loop, and by
then a task that always has something to send has taken all the work requests that completed. The waiter queues up
behind the others again, and the busy task is again the first to run. (Measured with three streams on a link whose
device held requests for two milliseconds: one stream sent 30,000 times, another one never.) A waiter that is called
therefore gets a reservation: room in the send queue that others may not take until the waiter has sent. A reservation
ends after a few turns of the loop, because the task may never send again.
"""
from collections import deque

from libc.stdint cimport uint32_t

cdef enum:
    RESERVATION_TURNS = 4   # of the loop: a task that was woken runs in the next one, or the one after that


cdef class BatchReceiver:
    cdef int end_of_batch(self) except -1:
        raise NotImplementedError


cdef class SendQueueWaiter(BatchReceiver):
    cdef int need(self) except -1:
        return NEEDS_CALL

    cdef void count_reservation(self, int change) noexcept:
        """A reservation begins (1) or ends (-1)."""

    cdef int on_room(self) except -1:
        raise NotImplementedError


cdef class FairQueue:
    def __cinit__(self):
        self.waiting = deque()
        self.reserved = deque()

    cdef void add(self, SendQueueWaiter waiter):
        if waiter.reserved:
            self.end_reservation(waiter)    # it tried to send and found no room
        if not waiter.waits_for_room:
            waiter.waits_for_room = True
            self.waiting.append(waiter)

    cdef void remove(self, SendQueueWaiter waiter):
        """The waiter needs no room any more."""
        if waiter.reserved:
            self.end_reservation(waiter)
        if waiter.waits_for_room:
            waiter.waits_for_room = False
            self.waiting.remove(waiter)

    cdef void end_reservation(self, SendQueueWaiter waiter):
        """The reservation was used or is not needed: others get the room, in the next turn at the latest."""
        waiter.reserved = False
        waiter.count_reservation(-1)
        self.reserved.remove(waiter)

    cdef int serve(self) except -1:
        """Work requests have completed: call the waiters that have enough room now, once each."""
        cdef SendQueueWaiter waiter
        cdef int need
        cdef object called
        if not self.waiting:
            return 0
        called = deque()
        # This loop calls nothing outside, so the waiters that stay keep their order.
        for _ in range(len(self.waiting)):
            waiter = self.waiting.popleft()
            need = waiter.need()
            if need == NEEDS_MORE_ROOM:
                self.waiting.append(waiter)
                continue
            waiter.waits_for_room = False
            if need == NEEDS_RESERVATION:
                waiter.reserved = self.needs_next_turn = True
                waiter.reserved_at = self.turn
                waiter.count_reservation(1)
                self.reserved.append(waiter)
            called.append(waiter)
        try:
            while called:
                waiter = called.popleft()
                waiter.on_room()
        finally:
            for waiter in called:
                self.add(waiter)    # a callback failed: the waiters behind it must not be lost
        return 0

    cdef int next_turn(self) except -1:
        """End reservations that are too old, and give unused room to the waiters."""
        cdef SendQueueWaiter waiter
        self.turn += 1
        while self.reserved:
            waiter = self.reserved[0]
            if self.turn - waiter.reserved_at < RESERVATION_TURNS:
                break
            self.end_reservation(waiter)
        self.needs_next_turn = len(self.reserved) > 0
        return self.serve()

    cdef void clear(self):
        """No work request will complete any more."""
        while self.reserved:
            self.end_reservation(self.reserved[0])
        while self.waiting:
            self.remove(self.waiting[0])
