# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""Send work requests are finite: whoever finds none waits here, in one queue for all QPs of an engine.

To be called first is not enough where a task does the sending: it runs in a later turn of the loop, and by then a task
that has always something to send has taken everything that came back. It then waits behind the others again, is called
with them when more comes back, and is the first to run again: the others send nothing for as long as it does (seen with
three streams on a link whose device held requests for two milliseconds: one sent 30,000 times, another one never). So
whoever is called is promised a place in the send queue, which nobody else may take until it has come. A promise ends
after a few turns: perhaps nobody sends there any more.
"""
from collections import deque

from libc.stdint cimport uint32_t

cdef enum:
    PROMISE_TURNS = 4       # of the loop: a task that was woken runs in the next one, or the one after that


cdef class Starving:
    cdef int wants(self) except -1:
        return WANTS_A_CALL

    cdef void count_promise(self, int change) noexcept:
        """Its place is kept (1), or is not any more (-1)."""

    cdef int on_room(self) except -1:
        raise NotImplementedError


cdef class StarvedQueue:
    def __cinit__(self):
        self.waiting = deque()
        self.kept = deque()

    cdef void add(self, Starving who):
        if who.promised:
            self.came(who)          # it came, and found nothing
        if not who.starving:
            who.starving = True
            self.waiting.append(who)

    cdef void remove(self, Starving who):
        """It has no use for any."""
        if who.promised:
            self.came(who)
        if who.starving:
            who.starving = False
            self.waiting.remove(who)

    cdef void came(self, Starving who):
        """It has used its place, or does not need it: others may have it, in the next turn at the latest."""
        who.promised = False
        who.count_promise(-1)
        self.kept.remove(who)

    cdef int feed(self) except -1:
        """Some have come back: call those for whom they suffice, once each."""
        cdef Starving who
        cdef int wants
        cdef object called
        if not self.waiting:
            return 0
        called = deque()
        # Nothing is called in here, so those who stay keep their order.
        for _ in range(len(self.waiting)):
            who = self.waiting.popleft()
            wants = who.wants()
            if wants == WANTS_NOTHING_NOW:
                self.waiting.append(who)
                continue
            who.starving = False
            if wants == WANTS_A_PLACE:
                who.promised = self.in_turns = True
                who.promised_at = self.turn
                who.count_promise(1)
                self.kept.append(who)
            called.append(who)
        try:
            while called:
                who = called.popleft()
                who.on_room()
        finally:
            for who in called:
                self.add(who)       # a callback failed: nobody is forgotten for that
        return 0

    cdef int next_turn(self) except -1:
        """Take back what was promised too long ago, and give what was not used to those who still wait."""
        cdef Starving who
        self.turn += 1
        while self.kept:
            who = self.kept[0]
            if self.turn - who.promised_at < PROMISE_TURNS:
                break
            self.came(who)
        self.in_turns = len(self.kept) > 0
        return self.feed()

    cdef void clear(self):
        """Nothing comes back any more."""
        while self.kept:
            self.came(self.kept[0])
        while self.waiting:
            self.remove(self.waiting[0])
