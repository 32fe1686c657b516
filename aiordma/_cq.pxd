# Declarations of _cq.pyx (stations 5 and 6 of the path of a byte).
from libc.stdint cimport int64_t, uint32_t, uint64_t

from .datapath._between_turns cimport BetweenTurns
from .datapath._bytes_pool cimport SpareBytes
from .datapath._fairness cimport BatchReceiver, FairQueue, SendQueueWaiter
from .datapath._late cimport LateWork
from .datapath._spin cimport SpinPolicy
from .datapath._verbs cimport ibv_comp_channel, ibv_cq, ibv_poll_cq, ibv_wc
from .wake._clock cimport Clock

cdef enum:
    BATCH = 32              # completions taken by one ibv_poll_cq
    GENERATION_BITS = 16    # wr_id = table index | generation | kind | number, see CompletionOwner.tag

cdef extern from "datapath/_stand_in.h" nogil:
    cdef struct aio_stand_in:
        int event
    int aio_stand_in_poll(aio_stand_in *s, ibv_cq *cq, int most, ibv_wc *wc)
    void aio_stand_in_end(aio_stand_in *s)

ctypedef int (*get_cq_event_fn)(ibv_comp_channel *, ibv_cq **, void **) noexcept nogil
ctypedef void (*ack_cq_events_fn)(ibv_cq *, unsigned int) noexcept nogil

cdef class CompletionOwner:
    """What completions are dispatched to: the data path of one queue pair."""
    cdef CompletionPoller cq
    cdef uint64_t tag                       # high 32 bits of every wr_id of this owner
    cdef int on_completion(self, ibv_wc *wc) except -1
    cdef int ran_out(self) except -1        # on_completion() or flush() had no memory, and did half of its work
    cdef int flush(self) except -1          # post what was deferred to the end of the tick
    cdef bint flush_beside(self) except -1  # the same in another thread, if that calls nothing else; False: not now
    cdef int post_failed(self, object error) except -1

cdef class CompletionPoller(LateWork):
    cdef ibv_cq *cq
    cdef ibv_comp_channel *channel
    cdef get_cq_event_fn get_event
    cdef ack_cq_events_fn ack_events
    cdef ibv_wc wc[BATCH]
    cdef aio_stand_in *stand_in             # with which the queue is shared (datapath/_stand_in.h); NULL: with none
    cdef object stand_in_owner
    cdef list owners                        # of completions, at the index in their tag
    cdef list free_slots
    cdef list dirty                         # owners with deferred work
    cdef FairQueue fair_queue
    cdef bint helping                       # another thread posts, in place of a loop that is blocked
    cdef bint helped                        # it has, since the loop was there last
    cdef int outside                        # posts that are at work without Python's lock
    cdef list failed_beside                 # owners with the errors that their posts met in that thread
    cdef uint32_t fragments, max_fragments  # WRITEs from registered memory under way on all QPs, and their limit
    cdef uint32_t reserved_fragments        # those that waiters hold a reservation for
    cdef uint32_t generation
    cdef Clock clock                        # waker.clock
    cdef object call_soon                   # waker.call_soon
    cdef object ready                       # the loop's ready queue, or None where it cannot be seen
    cdef object keep                        # owners of the C objects
    cdef bint closed, armed, scheduled, dispatching, activity
    cdef list receivers                     # to be called at the end of this batch
    cdef uint64_t batches
    cdef bint from_event                    # what is dispatched now came after the engine had slept
    cdef bint adaptive
    cdef SpinPolicy spin
    cdef int64_t armed_at
    cdef int linger                         # turns of the loop to poll on before arming
    cdef int linger_rest                    # events that do not count for it: the loop is busy with others
    cdef int64_t idle_since                 # when a turn ended that called nothing; 0: none
    cdef uint64_t hits_seen
    cdef readonly BetweenTurns between
    cdef bint first                         # nothing was ready to run when the engine's turn was scheduled
    cdef uint32_t turns                     # moments at which all deferred work was done
    cdef int64_t deferred_at                # when the first of the deferred work was
    cdef public uint64_t wakes              # waiters and callbacks woken by dispatch
    cdef public uint32_t second             # the loop's clock, as the engine's timer saw it last: dates what is in use
    cdef readonly SpareBytes spare          # for the receivers of this engine
    cdef readonly uint64_t completions, events, arms, busy_polls, busy_poll_hits, budget_exhausted
    cdef readonly uint64_t dispatch_errors, stale_completions, polls, empty_polls, slow_polls
    cdef readonly int64_t slowest_poll_ns
    cdef int64_t slow_poll_ns, asked_at     # 0: slow polls are not watched
    cdef int64_t slow_until                 # when the last slow poll was over
    cdef object on_slow_poll

    cdef void set_stand_in(self, aio_stand_in *stand_in, object owner)

    cdef inline int take(self) noexcept nogil:
        """Poll for one batch."""
        if self.stand_in == NULL:
            return ibv_poll_cq(self.cq, BATCH, self.wc)
        return aio_stand_in_poll(self.stand_in, self.cq, BATCH, self.wc)

    cdef int attach(self, CompletionOwner owner) except -1
    cdef void detach(self, CompletionOwner owner)
    cdef void mark_dirty(self, CompletionOwner owner)
    cdef int flush_if_late(self) except -1
    cdef inline bint may_post_fragment(self, bint reserved) noexcept:
        """:param reserved: whether one of the reservations is the caller's."""
        return self.fragments + self.reserved_fragments - (1 if reserved else 0) < self.max_fragments

    cdef inline uint32_t fragments_free(self) noexcept:
        cdef uint32_t used = self.fragments + self.reserved_fragments
        return self.max_fragments - used if used < self.max_fragments else 0

    cdef int serve_waiters(self) except -1
    cdef int end(self, CompletionOwner owner, error) except -1
    cdef int report(self, error) except -1
    cdef bint may_hold(self)
    cdef int flush(self) except -1
    cdef int fail_owner(self, CompletionOwner owner, object error) except -1
    cdef int report_failed(self) except -1
    cdef int poll(self) except -1
    cdef int _dispatch(self, int n) except -1
    cdef void look_at_gap(self, int64_t since, str where)
    cdef int arm(self) except -1
    cdef void schedule(self)
    cdef void call_after_batch(self, BatchReceiver receiver)
    cdef int end_batch(self) except -1
    cdef void served(self)
    cdef void sent(self)
    cdef void expect(self, bint sent)
    cdef bint look_on(self, bint alone) except -1
    cdef bint may_spin(self)
    cdef int spin_once(self, int64_t deadline) except -1
    cdef int look(self) except -1
    cdef int catch_up(self) except -1
    cdef void spin_paid(self, int64_t started)
    cdef void will_park(self)
    cdef void spin_wasted(self)
    cdef int park(self) except -1
