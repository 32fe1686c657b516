# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""Polling between turns of the event loop, for those who cannot poll themselves.

A task that receives polls before it parks. A transport of asyncio has no such moment: its protocol is called from the
loop, and then the loop sleeps until the next message, which costs the peer a doorbell and this end a wake-up. So the
engine polls in its place. When a transport was served, or has sent something, the engine takes a turn in the loop:

1. ``expect()``: something may come soon. The turn that begins now belongs to whatever else is ready to run.
2. ``look()`` in each turn of the engine: the time until which it may poll now, a slice at most. Then it comes back in
   the loop's next turn, so that timers, other descriptors and ready callbacks wait for a slice and no longer.
3. The time is up: the engine arms and the loop sleeps, as without any of this.

Before each slice the thread yields its CPU. On a CPU of its own that costs half a microsecond. Where the peer, or a
third process that the peer waits for, shares the CPU, it runs at once, and its answer is found as soon as this thread
runs again: two ends on one CPU take turns without a sleep. Where others keep the CPU, a thread that yields gets it back
late, milliseconds even, and a sleeper would have been preferred to them. Such a loss is set against what was gained since
the last one. If it is greater, the engine does not poll for a while, and for twice as long each time (``yielded()``).

A program with much in flight does not poll either. While it waits for an answer, its other descriptors bring more to send:
a proxy with fifty clients is an example. Each turn then sends the little that has just come, and each piece costs both ends
a message; a program that sleeps finds more at once, and sends it in one. When that happens more often than an answer comes
alone, the engine does not poll for a while (``sent()``).

No I/O and no clock: the caller polls, yields and says what time it is.
"""
from libc.stdint cimport int64_t

from ._spin cimport RunQueueDelay, SpinPolicy

cdef int64_t SLICE_NS = 5_000
# The peer's program has to work on an answer, so the wait is longer than an operation's that polls a busy stream.
cdef int64_t LONGEST_NS = 250_000
# Somebody else had work of its own for this CPU. A peer that only answers is done sooner.
cdef int64_t CROWDED_NS = 400_000
# What an answer gains that polling found: a sleep less here, and a doorbell less there.
cdef int64_t GAIN_NS = 10_000
cdef int64_t MOST_GAINED_NS = 10_000_000
cdef int64_t REST_PER_LOSS = 64
cdef int64_t LONGEST_REST_NS = 5_000_000_000
# Sends that came into waits for answers, less the answers, until there is no polling for a while.
cdef int MOST_OVERLAPS = 16
cdef int64_t SHORTEST_OVERLAP_REST_NS = 20_000_000
cdef int64_t LONGEST_OVERLAP_REST_NS = 1_000_000_000


cdef class BetweenTurns:
    """Of one engine. All times in nanoseconds.

    :param queue: where the run-queue delay is read.
    """

    def __init__(self, RunQueueDelay queue not None):
        self.policy = SpinPolicy(queue, LONGEST_NS)

    @property
    def active(self) -> bool:
        """Whether the engine's next turn in the loop has to look."""
        return self.is_active()

    @property
    def expecting_since(self) -> int:
        """When the wait began; 0: there is none."""
        return self.since

    cpdef bint expect(self, int64_t now) noexcept:
        """A transport is served, or has sent something. True: take a turn; False: it is no time to poll."""
        if self.policy.budget_ns <= 0 or now < self.rests_until:
            return False
        self.crowded = False
        self.expecting = True
        return True

    cpdef bint sent(self, int64_t now) noexcept:
        """As ``expect()``: a transport has sent something, and an answer may come."""
        if self.owing and self.idle and self.policy.adaptive:
            # The loop had nothing to do, waited, and then had more to send before it had the answer.
            self.overlaps += 1
            if self.overlaps >= MOST_OVERLAPS:
                self.overlaps = 0
                self.rest_for(now, min(LONGEST_OVERLAP_REST_NS, max(2 * self.rest, SHORTEST_OVERLAP_REST_NS)))
                self.crowded = True
                return False
        self.owing = True
        return self.expect(now)

    cpdef void found(self, int64_t now):
        """Something came for a transport, after a wait."""
        cdef int64_t took = now - self.since
        self.since = 0
        self.owing = False
        if self.overlaps:
            self.overlaps -= 1
        # Later than that, the thread did something else meanwhile, or did not run: polling has not found it.
        if took <= 2 * self.policy.budget_ns:
            self.hits += 1
            self.gained = min(MOST_GAINED_NS, self.gained + GAIN_NS)
            if self.gained == MOST_GAINED_NS:
                self.rest = 0
            self.policy.found_after(took)

    cpdef int64_t look(self, int64_t now):
        """Until when to poll in this turn: 0: not in this one, but come back in the next; -1: sleep."""
        cdef int64_t end
        if self.policy.budget_ns <= 0:
            self.stop()
            return -1
        if self.expecting:
            self.expecting = False
            if not self.since:
                self.waits += 1
            self.since = now
            self.idle = False
            return 0
        end = self.since + self.policy.budget_ns
        if now >= end:
            self.stop()
            self.policy.missed()
            self.policy.park(now)
            return -1
        return min(end, now + SLICE_NS)

    cpdef int64_t yielded(self, int64_t before, int64_t now):
        """The CPU was yielded; as ``look()``. The time that others had it is not part of the wait."""
        if now - before > CROWDED_NS and self.policy.adaptive:
            self.gained -= now - before
            if self.gained < 0:
                self.rest_for(now, min(LONGEST_REST_NS, max(2 * self.rest, REST_PER_LOSS * (now - before))))
                return -1
        self.idle = True
        self.since += now - before
        return min(self.since + self.policy.budget_ns, now + SLICE_NS)

    cdef void rest_for(self, int64_t now, int64_t rest) noexcept:
        """Do not poll for so long."""
        self.rest = rest
        self.rests_until = now + rest
        self.gained = 0
        self.rests += 1
        self.stop()

    cpdef void stop(self) noexcept:
        """Nothing is waited for any more."""
        self.expecting = self.owing = self.idle = False
        self.since = 0
