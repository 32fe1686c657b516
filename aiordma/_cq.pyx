# Belongs to the package aiordma.datapath; only its path is fixed.
# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""Completion channel and completion queue: stations 5 and 6 of the path of a byte.

Why a wake-up cannot be lost
----------------------------
``ibv_req_notify_cq`` requests ONE event, for a completion that is added AFTER the call. Before sleeping the poller
must therefore arm and then poll again: the second poll finds everything that came before the arming, and everything
after it raises the event. The flag ``armed`` means "the device will raise an event, or has raised one that is not read
yet": :meth:`CompletionPoller.arm` sets it, and only reading an event clears it. At any moment one of these holds, and
each leads to another poll:

* ``armed``: the channel's fd is or becomes readable, and the loop calls :meth:`on_readable`;
* ``scheduled``: the loop will run :meth:`_service` in its next iteration, which arms when there is no activity;
* :meth:`poll` is running and ends in one of the two.

Where a thread may poll instead of the loop (``datapath/_stand_in.h``), what it has taken is handed over by the loop's
next poll, and makes another descriptor readable, upon which the loop calls :meth:`schedule`.

No timer backs this up. An operation that waits calls :meth:`park`, which arms unless one of the first two holds. What
a batch calls may wait, too: amid a batch there is no second poll, so :meth:`arm` has the loop look in its next turn.

Hybrid polling (X-RDMA)
-----------------------
An operation that would park may busy-poll for a while (:meth:`spin_once`), because waking a sleeping CPU costs tens of
microseconds. The time allowed adapts (``datapath/_spin.pyx``). Whether the engine keeps
polling for some turns of the loop before it arms (``linger``) adapts in the same way, to events that come right after
the arming; where other tasks keep the loop busy it does not linger (``linger_rest``).
"""
import logging

from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t

from .datapath._between_turns cimport BetweenTurns
from .datapath._bytes_pool cimport SpareBytes
from .datapath._spin cimport RunQueueDelay, SpinPolicy, aio_relax, sched_yield
from .datapath._verbs cimport IBV_WC_SUCCESS, ibv_comp_channel, ibv_cq, ibv_req_notify_cq, ibv_wc
from .wake._clock cimport Clock

from .proto.codes import Code
from .verbs.memory.budget import MemoryLimitError
from .wake.escaping import contain

logger = logging.getLogger("aiordma.cq")

cdef enum:
    LATE_NS = 100_000        # deferred work that is followed by more after this time is done
    BUDGET = 8              # batches one wake-up may dispatch before other callbacks of the loop get their turn
    POLLS_PER_CLOCK = 16    # empty polls between two looks at the clock
    LINGER_MAX = 16         # turns of the loop that see nothing before polling gives way to arming
    LINGER_PAYS_NS = 15_000 # an event so soon after arming costs more than a turn of polling
    IDLE_TURN_NS = 15_000   # a turn of the loop that takes longer, and not for what we called, had other work to do
    LINGER_REST = 64        # events until the next try to linger in such a loop


cdef class CompletionOwner:
    cdef int on_completion(self, ibv_wc *wc) except -1:
        raise NotImplementedError

    cdef int ran_out(self) except -1:
        return 0

    cdef int flush(self) except -1:
        raise NotImplementedError

    cdef bint flush_beside(self) except -1:
        return True

    cdef int post_failed(self, object error) except -1:
        raise NotImplementedError


cdef class CompletionPoller(LateWork):
    """One per engine. Single-threaded: every method runs in the thread of the engine's event loop.

    :param cq, channel: addresses of ``struct ibv_cq`` and of its ``struct ibv_comp_channel`` (fd non-blocking).
    :param get_event, ack_events: addresses of ``ibv_get_cq_event`` and ``ibv_ack_cq_events`` (the others are inline).
    :param clock: the loop's. Where it is not the system's, there is no busy polling: nothing would end it.
    :param call_soon: the loop's ``call_soon``.
    :param ready: the loop's queue of ready callbacks where it can be seen (asyncio), else None.
    :param busy_poll_us: None = adaptive, 0 = events only, else a fixed time.
    :param max_fragments: WRITEs from registered memory that may be under way on all QPs together.
    :param keep: objects that own the C structures, kept alive as long as this one.
    """

    def __init__(self, uintptr_t cq, *, uintptr_t channel, uintptr_t get_event, uintptr_t ack_events,
                 Clock clock not None, object call_soon, object ready, object busy_poll_us, uint32_t max_fragments,
                 object keep):
        self.cq = <ibv_cq *>cq
        self.channel = <ibv_comp_channel *>channel
        self.get_event = <get_cq_event_fn>get_event
        self.ack_events = <ack_cq_events_fn>ack_events
        self.clock = clock
        self.call_soon = call_soon
        self.ready = ready
        self.keep = keep
        self.owners = []
        self.spare = SpareBytes()
        self.free_slots = []
        self.receivers = []
        self.dirty, self.failed_beside = [], []
        self.fair_queue = FairQueue()
        self.turns = 1
        self.max_fragments = max_fragments
        self.spin = SpinPolicy(RunQueueDelay())
        self.between = BetweenTurns(RunQueueDelay())
        self.set_busy_poll(busy_poll_us)

    # ---- settings and state

    def set_max_fragments(self, uint32_t max_fragments) -> None:
        """Change the limit at run time. Beyond a smaller one, what is under way goes on."""
        self.max_fragments = max_fragments

    def set_busy_poll(self, busy_poll_us: int | None) -> None:
        """Change the polling policy at run time: None = adaptive, 0 = events only, else microseconds."""
        if not self.clock.real:
            busy_poll_us = 0
        self.adaptive = busy_poll_us is None
        self.spin.set(-1 if busy_poll_us is None else <int64_t>busy_poll_us * 1000)
        self.between.policy.set(-1 if busy_poll_us is None else <int64_t>busy_poll_us * 1000)

    @property
    def fd(self) -> int:
        return self.channel.fd

    @property
    def is_armed(self) -> bool:
        return self.armed

    @property
    def busy_poll_budget_ns(self) -> int:
        return self.spin.budget_ns

    cdef void set_stand_in(self, aio_stand_in *stand_in, object owner):
        """Share the queue with a thread that polls while the loop does not (``datapath/_stand_in.h``)."""
        self.stand_in_owner, self.stand_in = owner, stand_in

    # ---- owners of completions

    cdef int attach(self, CompletionOwner owner) except -1:
        cdef uint64_t index
        self.generation = (self.generation + 1) & 0xffff
        if self.free_slots:
            index = self.free_slots.pop()
            self.owners[index] = owner
        else:
            index = len(self.owners)
            if index > 0xffff:
                raise MemoryLimitError(
                    "this event loop has 65536 queue pairs, and its completion queue tells no more apart: close "
                    "connections, or use several event loops or processes", Code.LIMIT_REACHED)
            self.owners.append(owner)
        # The generation tells completions of a destroyed QP from those of the next one in the same slot.
        owner.cq = self
        owner.tag = (index << 48) | (<uint64_t>self.generation << 32)
        return 0

    cdef void detach(self, CompletionOwner owner):
        cdef uint64_t index = owner.tag >> 48
        if index < <uint64_t>len(self.owners) and self.owners[index] is owner:
            self.owners[index] = None
            self.free_slots.append(index)
        while owner in self.dirty:
            self.dirty.remove(owner)

    # ---- work deferred to the end of the tick

    cdef void mark_dirty(self, CompletionOwner owner):
        self.dirty.append(owner)        # first: the thread that helps takes what it finds to be all
        if len(self.dirty) == 1:
            self.deferred_at = self.clock.ns()
            if self.clock.real:
                self.work_waits()
        elif self.helped and not self.helping:
            self.helped = False         # the loop was blocked, and may be again before its turn ends
            self.work_waits()
        self.schedule()

    cdef int flush_if_late(self) except -1:
        """Do the deferred work now if some of it waits for long: what is sent with work of the program's in between
        shall reach the peer while the program works on, and not all of it at the end."""
        if self.dirty and not self.helping and self.clock.ns() - self.deferred_at >= LATE_NS:
            return self.flush()
        return 0

    cdef bint may_hold(self):
        """Whether deferred work may wait for what others, who are ready to run, will add to it."""
        return (self.between.crowded and self.ready is not None and len(self.ready) > 0 and len(self.dirty) > 0
                and self.clock.ns() - self.deferred_at < LATE_NS)

    cdef int flush(self) except -1:
        cdef list work
        cdef CompletionOwner owner
        self.turns += 1
        if not self.dirty:
            return 0
        self.work_done()
        self.helped = False
        work, self.dirty = self.dirty, []
        for owner in work:
            try:
                owner.flush()
            except BaseException as error:
                # It must not keep the others from theirs, nor come out of the operation that this is done for.
                self.end(owner, error)
        return 0

    cdef bint help(self) except -1:
        """The loop is blocked. What it has deferred stays deferred: its turn finds that nothing is left to post."""
        cdef CompletionOwner owner
        cdef Py_ssize_t i = 0
        cdef bint done = True
        if self.outside or self.closed:
            return self.closed
        self.helping = True
        try:
            while i < len(self.dirty):      # datagrams that are placed have their queue pair follow them
                owner = self.dirty[i]
                i += 1
                if not owner.flush_beside():
                    done = False
        finally:
            self.helping = False
        self.helped = True
        return done

    cdef int fail_owner(self, CompletionOwner owner, object error) except -1:
        """A post has failed. Those who must know are called by the loop."""
        if self.helping:
            self.failed_beside.append((owner, error))
            return 0
        return owner.post_failed(error)

    cdef int report_failed(self) except -1:
        cdef CompletionOwner owner
        while self.failed_beside:
            owner, reason = self.failed_beside.pop()
            try:
                owner.post_failed(reason)
            except BaseException as error:
                self.end(owner, error)
        return 0

    cdef int serve_waiters(self) except -1:
        """Send work requests have come back."""
        self.fair_queue.serve()
        if self.fair_queue.needs_next_turn:
            self.schedule()
        return 0

    # ---- polling

    cdef int poll(self) except -1:
        """Take one batch and dispatch it; the number of completions."""
        cdef int n
        if self.closed or self.dispatching:
            return 0
        # With the GIL: a look takes some tens of nanoseconds, giving it up and taking it again takes more.
        n = self.take()
        self.polls += 1
        return self._dispatch(n)

    cdef int _dispatch(self, int n) except -1:
        cdef int i
        cdef int64_t started = 0
        cdef uint64_t index
        cdef CompletionOwner owner
        cdef object found
        if n <= 0:
            if n < 0:
                raise OSError(-n, "ibv_poll_cq failed")
            self.empty_polls += 1
            return 0
        if self.slow_poll_ns:
            started = self.clock.ns()
        self.completions += n
        self.batches += 1
        self.activity = True
        # A callback may poll again (an operation that busy-polls): the batch in wc[] must be dispatched first.
        self.dispatching = True
        try:
            for i in range(n):
                index = self.wc[i].wr_id >> 48
                if index >= <uint64_t>len(self.owners):
                    self.stale_completions += 1
                    continue
                found = self.owners[index]
                if found is None or (<CompletionOwner>found).tag != self.wc[i].wr_id & <uint64_t>0xffffffff00000000:
                    self.stale_completions += 1
                    continue
                owner = <CompletionOwner>found
                try:
                    owner.on_completion(&self.wc[i])
                except BaseException as error:
                    # A failing owner must not keep the others from their completions.
                    self.end(owner, error)
            if self.receivers:
                self.end_batch()
        finally:
            self.dispatching = False
            if started:
                self.look_at_gap(started, "what a batch of completions called")
        return n

    cdef void call_after_batch(self, BatchReceiver receiver):
        """Call ``receiver.end_of_batch()`` when all of this batch is dispatched, once for all that the batch has
        brought: a peer with much to send announces it piece by piece."""
        if receiver.batch != self.batches:
            receiver.batch = self.batches
            self.receivers.append(receiver)

    cdef int end_batch(self) except -1:
        cdef list called
        cdef BatchReceiver receiver
        while self.receivers:       # what is called may bring more: an end, a failure
            called, self.receivers = self.receivers, []
            for receiver in called:
                receiver.batch = 0
                try:
                    receiver.end_of_batch()
                except BaseException as error:
                    self.report(error)
        return 0

    cdef int end(self, CompletionOwner owner, error) except -1:
        """What it was to do has failed. Without memory for it, it would wait for ever for what it did not do."""
        self.report(error)
        if isinstance(error, MemoryError):
            try:
                owner.ran_out()
            except BaseException as another:
                self.report(another)
        return 0

    cdef int report(self, error) except -1:
        """What a completion called has failed."""
        self.dispatch_errors += 1
        if not contain(error):
            logger.error("completion handler failed", exc_info=error)
        return 0

    # ---- slow polls

    def watch_polls(self, int64_t threshold_ns, on_slow_poll) -> None:
        """Call ``on_slow_poll(nanoseconds, where)`` when the event loop returns to this engine later than that (0:
        never): something in the loop, or what a completion called, took so long."""
        self.slow_poll_ns = threshold_ns
        self.on_slow_poll = on_slow_poll if threshold_ns else None
        self.asked_at = 0

    def came_by(self, int64_t due) -> None:
        """The event loop comes by, and was to at ``due``, in nanoseconds of the clock (``links/loop_watch.py``)."""
        self.look_at_gap(due, "the event loop's way back to its engine")

    cdef void look_at_gap(self, int64_t since, str where):
        cdef int64_t now = self.clock.ns()
        # One pause is seen from several places: the first reports it.
        cdef int64_t took = now - max(since, self.slow_until)
        if self.slow_poll_ns and took >= self.slow_poll_ns:
            self.slow_until = now
            self.slow_polls += 1
            self.slowest_poll_ns = max(self.slowest_poll_ns, took)
            self.on_slow_poll(took, where)

    def send_deferred(self) -> None:
        """Do the deferred work now: the loop will not come back to it."""
        self.flush()

    def drain(self) -> int:
        """Dispatch the completions that exist now (bounded); their number. For teardown and for TCP EOF, which may
        overtake the peer's last message."""
        cdef int total = 0, n, batches = 0
        while batches < 64:
            n = self.poll()
            if n == 0:
                break
            total += n
            batches += 1
        return total

    def begin(self) -> None:
        """Arm for the first time; from then on the invariant above holds."""
        self.arm()

    # ---- sleeping and waking

    cdef int arm(self) except -1:
        """Arm, then poll again. Afterwards every completion that comes raises an event."""
        cdef int rc
        if self.closed:
            return 0
        rc = ibv_req_notify_cq(self.cq, 0)
        if rc:
            raise OSError(rc, "ibv_req_notify_cq failed")
        self.armed = True
        self.arms += 1
        if self.adaptive:
            self.armed_at = self.clock.ns()
        if self.dispatching or self.poll() == BATCH:    # amid a batch nothing is polled
            self.schedule()     # completions from before the arming may be left, and raise no event
        return 0

    cdef void schedule(self):
        if not self.scheduled and not self.closed and not self.helping:
            self.scheduled = True
            self.first = self.ready is not None and len(self.ready) == 0
            if self.slow_poll_ns:
                self.asked_at = self.clock.ns()
            self.call_soon(self._service)

    def _service(self) -> None:
        """The engine's turn in the loop: post what was deferred, poll, and arm when there is no activity."""
        cdef int batches = 0
        cdef uint64_t seen
        cdef bint alone = self.first and len(self.ready) == 0, held
        self.scheduled = False
        if self.closed:
            return
        if self.asked_at:
            self.look_at_gap(self.asked_at, "the event loop's way back to its engine")
            self.asked_at = 0
        if self.idle_since:
            # A loop that is busy with other tasks polls often enough anyway. Keeping it from sleeping only makes its
            # batches smaller, and takes the CPU from the processes whose work it waits for.
            if self.clock.ns() - self.idle_since > IDLE_TURN_NS:
                self.linger, self.linger_rest = 0, LINGER_REST
            self.idle_since = 0
        if self.fair_queue.needs_next_turn:
            try:
                self.fair_queue.next_turn()
            except BaseException as error:
                self.report(error)
            if self.fair_queue.needs_next_turn:
                self.schedule()
        if self.failed_beside:
            self.report_failed()
        seen = self.completions
        held = self.may_hold()
        if not held:
            self.flush()
        while batches < BUDGET and self.poll() == BATCH:
            batches += 1
        if batches == BUDGET:
            self.budget_exhausted += 1
        if held:
            self.schedule()
            return
        self.flush()
        if self.between.is_active() and self.look_on(alone):
            self.activity = False
            self.schedule()
            return
        if not self.activity and self.linger > 0:
            self.linger -= 1
        if batches == BUDGET or (self.activity and self.linger > 0) or self.busy_poll_hits != self.hits_seen:
            # Busy polls of operations find completions, or turns like this one do: too early to sleep.
            self.activity = False
            self.hits_seen = self.busy_poll_hits
            self.schedule()
            if self.linger > 0 and self.completions == seen:
                self.idle_since = self.clock.ns()    # what the loop does until the next turn was not called from here
        elif not self.armed:
            self.activity = False
            self.arm()
            self.flush()

    def on_readable(self) -> None:
        """The channel's fd is readable: read the event, drain, and re-arm or keep polling."""
        cdef ibv_cq *which
        cdef void *context
        cdef int64_t now
        cdef uint64_t woken = self.wakes
        if self.closed:
            return
        if self.adaptive and self.armed_at:
            # Woken right after it slept: another turn of polling would have found this without a system call.
            now = self.clock.ns()
            if now - self.armed_at < LINGER_PAYS_NS:
                if self.linger_rest > 0:
                    self.linger_rest -= 1
                else:
                    self.linger = min(self.linger + 2, LINGER_MAX)
            self.armed_at = 0
        # Armed once, so there is one event at most: another read would be a wasted system call.
        if self.get_event(self.channel, &which, &context) == 0:
            self.ack_events(self.cq, 1)
            self.events += 1
            self.armed = False
        cdef int batches = 0
        self.from_event = True
        try:
            while batches < BUDGET and self.poll() == BATCH:
                batches += 1
        finally:
            self.from_event = False
        if batches == BUDGET:
            self.budget_exhausted += 1
        if self.wakes != woken:
            now = self.clock.ns()
            self.spin.woken(now)
            self.between.policy.woken(now)
        self.flush()
        if batches == BUDGET or self.linger > 0 or self.between.is_active():
            self.schedule()
        elif not self.armed:
            self.arm()
            self.flush()

    cdef int park(self) except -1:
        """Called by an operation right before it waits: afterwards its wake-up is certain."""
        self.flush()
        if not self.armed and not self.closed:
            self.arm()
            self.flush()
        return 0

    # ---- hybrid polling

    cdef bint may_spin(self):
        if self.spin.budget_ns <= 0 or self.dispatching or self.closed:
            return False
        # The poller's own scheduled turn is not another task's work.
        if self.ready is not None and len(self.ready) > (1 if self.scheduled else 0):
            return False
        return True

    cdef int spin_once(self, int64_t deadline) except -1:
        """Poll until completions were dispatched (their number) or the deadline has passed (0). Without the GIL: it may
        take long."""
        cdef int n = 0, turn
        cdef Clock clock = self.clock
        with nogil:
            while True:
                for turn in range(POLLS_PER_CLOCK):
                    n = self.take()
                    if n:
                        break
                    aio_relax()
                if n or clock.ns() >= deadline:
                    break
        if n:
            self.polls += 1
            self._dispatch(n)
            self.schedule()
        return n

    cdef int look(self) except -1:
        """One look in the middle of an operation, on a link that is busy; whether anything was dispatched."""
        cdef int n
        self.flush()
        if self.spin.budget_ns <= 0 or self.closed:
            return 0
        n = self.poll()
        if n:
            self.schedule()
        return n

    cdef int catch_up(self) except -1:
        """Dispatch what has come (bounded), whatever the policy: for operations that do not wait. The event loop may
        not have had a turn since it came."""
        cdef int n, batches = 0
        self.flush()
        while True:
            n = self.poll()
            batches += 1
            if n:
                self.schedule()
            if n < BATCH or batches == BUDGET:
                return 0

    cdef void spin_paid(self, int64_t started):
        self.busy_poll_hits += 1
        # Read the clock now and then only: every message of a busy stream passes here.
        if self.busy_poll_hits % 16 == 0:
            self.spin.found_after(self.clock.ns() - started)
        else:
            self.spin.found()

    cdef void will_park(self):
        """An operation found nothing and will wait; the time it waits shows whether polling would have paid."""
        if self.adaptive:
            self.spin.park(self.clock.ns())

    cdef void spin_wasted(self):
        self.spin.missed()

    # ---- polling between turns of the loop (datapath/_between_turns.pyx)

    cdef void served(self):
        """Something has come for a transport."""
        if self.between.since:
            self.between.found(self.clock.ns())
        self.expect(False)

    cdef void sent(self):
        """A transport has sent something: an answer may come."""
        self.expect(True)

    cdef void expect(self, bint sent):
        """More may come soon."""
        cdef int64_t now
        if self.between.expecting:
            return
        now = self.clock.ns()
        if self.between.sent(now) if sent else self.between.expect(now):
            self.schedule()
        elif self.adaptive and not self.between.crowded and not self.between.policy.parked_at:
            self.between.policy.park(now)

    cdef bint look_on(self, bint alone) except -1:
        """Poll for what transports expect, if nothing else is ready to run; whether to go on in the next turn."""
        cdef Clock clock = self.clock
        cdef int64_t now = clock.ns(), before
        cdef int64_t end = self.between.look(now)
        if end > 0 and alone:
            before = now
            with nogil:
                sched_yield()
                now = clock.ns()
            end = self.between.yielded(before, now)
            if end > 0:
                self.spin_once(end)
                self.flush()
        return end >= 0

    # ---- end

    def close(self) -> None:
        """Stop dispatching. The owner then unregisters the fd, destroys the QPs, the CQ and the channel, in that order.
        All events read so far have been acked."""
        self.closed = True
        if self.stand_in != NULL:
            with nogil:
                aio_stand_in_end(self.stand_in)
        self.between.stop()
        self.owners.clear()
        self.dirty.clear()
        self.no_more_work()
        self.fair_queue.clear()
