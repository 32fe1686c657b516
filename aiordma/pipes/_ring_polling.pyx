# cython: language_level=3, boundscheck=False, wraparound=False
"""Hybrid polling on a ring pipe: look for a moment, as long as the engine's policy allows it, before a task parks."""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint32_t, uint64_t

from ..plain cimport check_plain
from .._cq cimport CompletionPoller
from ..datapath._hybrid cimport FOUND, hybrid_poll
from ._ring cimport RingPipe
from ._ring_cursors cimport CLOSED, SENDING_DONE
from ._ring_failover cimport LEFT, ON_RDMA

cdef enum:
    BIG_RECEIVE = 32768     # from here on, what arrives while a result is copied goes into it as well
    SEND_STEP = 262144      # most bytes of one poll_send(): then others of the loop may want their turn


cdef bint can_read(void *ring, uint64_t least) noexcept:
    cdef RingPipe self = <RingPipe>ring
    return (self.failure is not None or self.closed or self.rx.available() >= least
            or self.cursors.peer_has(SENDING_DONE))


cdef bint can_write(void *ring, uint64_t least) noexcept:
    cdef RingPipe self = <RingPipe>ring
    return self.failure is not None or self.closed or self.cursors.peer_has(CLOSED) or self.room() >= least


cdef bint busy_poll(RingPipe ring, bint reading, uint32_t least) except -1:
    """Post what was put off; then poll until ``least`` bytes can be read (or sent), as long as the policy allows.
    True: they can, or the stream is at its end."""
    if not reading and ring.failover.stage == LEFT:
        ring.qp.cq.flush()
        return can_write(<void *>ring, least)
    return hybrid_poll(ring.qp.cq, can_read if reading else can_write, <void *>ring, least) == FOUND


cdef Py_ssize_t poll_send(RingPipe ring, data, Py_ssize_t start) except -1:
    """try_send(), and again whenever polling, as far as the policy allows it, has found room; the number of bytes.
    Less than SEND_STEP and less than what there was: polling is over, park. One call for many fragments: a call for
    each of them costs a bulk sender more than posting it."""
    cdef Py_buffer view
    cdef Py_ssize_t placed = 0, n
    ring.check_sendable()
    check_plain(data)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        n = view.len - start
        while start >= 0 and placed < n and placed < SEND_STEP:
            if ring.failover.stage == ON_RDMA:
                placed += ring.put_bytes(<const unsigned char *>view.buf + start + placed, n - placed)
            # The next call reports what ends the stream.
            if placed == n or not busy_poll(ring, False, 1) or ring.shut or ring.failure is not None:
                break
    finally:
        PyBuffer_Release(&view)
    return placed


cdef object poll_receive(RingPipe ring, Py_ssize_t max_bytes):
    """try_receive(), after polling for as long as the policy allows when there is nothing yet: one call for the
    path of a round trip, on which every hundred nanoseconds count. What arrives while a large result is being copied
    goes into it as well."""
    cdef uint32_t n = ring.rx.available(), most
    if n == 0:
        if not busy_poll(ring, True, 1):
            return None if max_bytes > 0 else ring.nothing(max_bytes)
        n = ring.rx.available()
    if n < BIG_RECEIVE or n >= max_bytes or ring.closed or ring.failover.stage == LEFT:
        return ring.try_receive(max_bytes)
    # Not more than twice of what is certain: a caller that keeps the result would keep memory that it does not see.
    most = 2 * n if max_bytes > 2 * <Py_ssize_t>n else <uint32_t>max_bytes
    return gather(ring, n, most)


cdef bytes gather(RingPipe ring, uint32_t n, uint32_t most):
    cdef CompletionPoller cq = ring.qp.cq
    cdef uint64_t woken = cq.wakes
    cdef uint32_t got = 0
    cdef bytes out = cq.spare.take(most)
    while n > 0:
        ring.copy_out(<unsigned char *>PyBytes_AS_STRING(out) + got, n)
        got += n
        if got == most or ring.rx.available() == 0 and not (cq.look() and cq.wakes == woken):
            break
        if ring.closed or ring.failover.stage == LEFT:
            break
        n = min(ring.rx.available(), most - got)
    ring.receives += 1
    return cq.spare.cut(out, got)
