# cython: language_level=3, boundscheck=False, wraparound=False
"""READs and WRITEs of a peer's memory on a link, as its user asked for them: what ``aiordma.memory`` is made of.

A :class:`Transfer` is posted in fragments. The send queue, the READs of the queue pair and the fragments of all links
of the engine bound what is under way; what finds no room waits in the engine's fair queue like everything else. All
completions of a queue pair come in the order of posting, so the oldest entry of ``out`` is the one that has completed.

A transfer holds its local buffer until the device has let go of it, also when the user has given it up: then no further
fragment is posted, and those that were posted end first. When the link fails, the device may touch the buffers until
the queue pair is silenced; they are held until :meth:`OneSided.release`.
"""
import logging
from collections import deque

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t

from .._cq cimport CompletionPoller, clock_ns
from ..datapath._fairness cimport NEEDS_CALL, NEEDS_MORE_ROOM
from ..datapath._qp cimport SQ_RESERVE, Flow, QueuePair
from ..datapath._verbs cimport IBV_SEND_INLINE, IBV_SEND_SIGNALED, aio_chain, aio_chain_read, aio_chain_write

from anyio import ClosedResourceError

logger = logging.getLogger("aiordma.memory")

cdef enum:
    MOST_OF_A_CHAIN = 3     # AIO_CHAIN_MAX


@cython.final
cdef class Transfer:
    cdef int let_go(self) except -1:
        """The device touches the buffer no more."""
        if self.has_view:
            self.has_view = False
            PyBuffer_Release(&self.view)
        return 0

    def __dealloc__(self):
        if self.has_view:
            PyBuffer_Release(&self.view)


@cython.final
cdef class OneSided(Flow):
    """The transfers of one peer on a link.

    :param qp: the link.
    :param fragment: most bytes of one READ or WRITE.
    """

    def __init__(self, QueuePair qp, uint32_t fragment):
        self.waiting, self.out, self.held = deque(), deque(), []
        self.fragment = fragment
        qp.register(self)

    @property
    def takes_any_buffer(self) -> bool:
        """Whether the device takes what is written with the request: then no lkey is needed for WRITEs."""
        return self.qp.max_inline >= self.fragment

    @property
    def under_way(self) -> int:
        """Fragments that were posted and have not completed."""
        return len(self.out)

    @property
    def over(self) -> bool:
        """Closed, and nothing of it is in use any more."""
        return self.gone and not self.held

    def read(self, into, *, uint32_t lkey, uint64_t remote, uint32_t rkey, on_done) -> Transfer:
        """READ as many bytes as ``into`` has; ``on_done(transfer)`` is called when the device has let go."""
        return self.begin(into, True, lkey, remote, rkey, on_done)

    def write(self, data, *, uint32_t lkey, uint64_t remote, uint32_t rkey, on_done) -> Transfer:
        """WRITE ``data``; ``lkey`` is 0 for a device that :attr:`takes_any_buffer`."""
        return self.begin(data, False, lkey, remote, rkey, on_done)

    cdef Transfer begin(self, object data, bint is_read, uint32_t lkey, uint64_t remote, uint32_t rkey, object on_done):
        cdef Transfer transfer
        if self.error is not None:
            raise self.error.with_traceback(None)
        if self.closed:
            raise ClosedResourceError("this end was closed")
        transfer = Transfer.__new__(Transfer)
        PyObject_GetBuffer(data, &transfer.view, PyBUF_WRITABLE if is_read else PyBUF_SIMPLE)
        transfer.has_view, transfer.is_read = True, is_read
        transfer.length, transfer.lkey, transfer.remote, transfer.rkey = transfer.view.len, lkey, remote, rkey
        transfer.on_done = on_done
        if transfer.length == 0:
            self.finish(transfer, None)
            return transfer
        self.waiting.append(transfer)
        self.pump()
        return transfer

    def give_up(self, Transfer transfer) -> None:
        """Post no more of it. ``on_done`` comes when what was posted has ended."""
        if transfer.done or transfer.posted == transfer.length:
            return
        self.waiting.remove(transfer)
        transfer.length = transfer.posted
        if transfer.under_way == 0:
            self.finish(transfer, None)

    # ---- posting

    cdef bint has_room(self) noexcept:
        return self.qp.cq.may_post_fragment(False) and self.qp.sq_free() > SQ_RESERVE + MOST_OF_A_CHAIN

    cdef int need(self) except -1:
        return NEEDS_CALL if self.has_room() else NEEDS_MORE_ROOM

    cdef int on_room(self) except -1:
        return self.pump()

    cdef int pump(self) except -1:
        """Post what the limits allow."""
        cdef Transfer transfer
        cdef QueuePair qp = self.qp
        while self.waiting and not qp.failed:
            transfer = self.waiting[0]
            if transfer.is_read and self.reads >= qp.max_reads:
                return 0        # the completion of one of them brings us back
            if not self.has_room():
                qp.cq.fair_queue.add(self)
                return 0
            self.post_next(transfer)
            if self.waiting and qp.cq.fair_queue.waiting:
                qp.cq.fair_queue.add(self)      # others of this engine wait for the same limit: one each
                return 0
        return 0

    cdef int post_next(self, Transfer transfer) except -1:
        """Post one READ, or a chain of WRITEs: one doorbell and one completion for all of them."""
        cdef aio_chain chain
        cdef QueuePair qp = self.qp
        cdef uint32_t n
        cdef uint64_t local, left
        cdef unsigned int flags
        chain.length = 0
        while transfer.posted < transfer.length and chain.length < MOST_OF_A_CHAIN:
            left = transfer.length - transfer.posted
            n = <uint32_t>left if left < self.fragment else self.fragment
            local = <uint64_t><uintptr_t>transfer.view.buf + transfer.posted
            if transfer.is_read:
                aio_chain_read(&chain, qp._send_id(&chain), local, n, transfer.lkey, IBV_SEND_SIGNALED,
                               transfer.remote + transfer.posted, transfer.rkey)
                transfer.posted += n
                self.reads += 1
                break
            flags = IBV_SEND_INLINE if n <= qp.max_inline else 0
            aio_chain_write(&chain, qp._send_id(&chain), local, n, transfer.lkey, flags,
                            transfer.remote + transfer.posted, transfer.rkey)
            transfer.posted += n
        transfer.under_way += 1
        self.out.append(transfer)
        if transfer.posted == transfer.length:
            self.waiting.popleft()
        return qp.post_fragment(self, &chain, 0)

    # ---- completions

    cdef void on_fragment_done(self, uint64_t until) noexcept:
        cdef Transfer transfer
        if self.qp.failed or not self.out:
            return              # on_broken() ends everything
        transfer = self.out.popleft()
        transfer.under_way -= 1
        if transfer.is_read:
            self.reads -= 1
        if self.waiting:
            self.qp.cq.fair_queue.add(self)     # which is served next
        if transfer.under_way == 0 and transfer.posted == transfer.length:
            self.finish(transfer, None)
            self.leave_if_done()

    cdef int finish(self, Transfer transfer, object error) except -1:
        transfer.done, transfer.error = True, error
        callback, transfer.on_done = transfer.on_done, None
        if error is None or transfer.under_way == 0:
            transfer.let_go()
        else:
            self.held.append(transfer)
        if self.qp is not None:
            self.qp.cq.wakes += 1
        try:
            callback(transfer)
        except Exception:
            logger.exception("the callback of a transfer failed")
        return 0

    cdef int on_broken(self, object reason) except -1:
        cdef Transfer transfer
        self.error = reason
        ended = dict.fromkeys([*self.out, *self.waiting])
        self.out.clear()
        self.waiting.clear()
        for transfer in ended:
            self.finish(transfer, reason)
        return 0

    def spin(self, Transfer transfer) -> bool:
        """Look for completions, and where the policy allows it now, for a short while; whether it is done. For an
        operation that would otherwise wait."""
        cdef CompletionPoller cq = self.qp.cq
        cdef int64_t started
        cdef uint64_t woken
        cq.flush()
        if transfer.done:
            return True
        # One look that needs neither the clock nor to give up the GIL: the software device has often ended it already.
        if cq.poll():
            cq.schedule()
        if not transfer.done and cq.may_spin():
            cq.spins += 1
            woken = cq.wakes
            started = clock_ns()
            while cq.spin_once(started + cq.spin.budget_ns):
                if transfer.done:
                    cq.spin_paid(started)
                    return True
                if cq.wakes != woken:
                    return False        # something else of this loop was woken: let it run
                cq.flush()
            cq.spin_wasted()
        if not transfer.done:
            cq.will_park()
            cq.park()
        return transfer.done

    # ---- end

    def close(self) -> None:
        """Take no more transfers; what was posted ends. Idempotent."""
        cdef Transfer transfer
        self.closed = True
        for transfer in list(self.waiting):
            self.give_up(transfer)
        self.leave_if_done()

    cdef int leave_if_done(self) except -1:
        if self.closed and not self.gone and not self.out:
            self.gone = True
            self.qp.unregister(self)
        return 0

    def release(self) -> None:
        """The queue pair is silenced: no buffer is in use any more."""
        cdef Transfer transfer
        for transfer in self.held:
            transfer.let_go()
        self.held.clear()
