# cython: language_level=3, boundscheck=False, wraparound=False
"""Hybrid polling: an operation that would wait looks for a moment first, as long as the engine's policy allows it.

The policy is the poller's (``_cq.pyx``, ``_spin.pyx``); what an operation waits for, only its owner knows.
"""
from libc.stdint cimport int64_t, uint64_t

from .._cq cimport CompletionPoller
from ._spin cimport aio_relax

cdef enum:
    LOOKS = 16


cdef int hybrid_poll(CompletionPoller cq, look_fn found, void *who, uint64_t what) except -1:
    """Post what was put off. Then poll until ``found(who, what)``, as long as the policy allows.

    FOUND; NOTHING: the policy has been told that the caller will wait; OTHERS: something else of this loop was woken,
    and should run.
    """
    cdef int64_t started
    cdef uint64_t woken = cq.wakes
    cdef int look
    cq.flush()
    if found(who, what):
        return FOUND
    if not cq.may_spin():
        cq.will_park()
        return NOTHING
    cq.busy_polls += 1
    # Some looks first that need neither the clock nor to release the GIL: a busy peer has often answered within a
    # microsecond, and to give the GIL up and take it again takes a tenth of that.
    for look in range(LOOKS):
        if cq.poll():
            cq.schedule()
            if found(who, what):
                cq.busy_poll_hits += 1
                return FOUND
            if cq.wakes != woken:
                return OTHERS
            cq.flush()
        else:
            aio_relax()
    started = cq.clock.ns()
    while cq.spin_once(started + cq.spin.budget_ns):
        if found(who, what):
            cq.spin_paid(started)
            return FOUND
        if cq.wakes != woken:
            return OTHERS
        cq.flush()
    if found(who, what):
        return FOUND
    cq.spin_wasted()
    cq.will_park()
    return NOTHING
