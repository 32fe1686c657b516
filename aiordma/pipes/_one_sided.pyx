# cython: language_level=3, boundscheck=False, wraparound=False
"""READs, WRITEs and atomic operations on a link, as their user asked for them: what ``aiordma.memory`` is made of.

A :class:`Transfer` has any number of pieces here and there. It is posted in fragments, in chains with one doorbell and
one completion. The send queue, the READs of the queue pair and the fragments of all links of the engine bound what is
under way; what finds no room waits in the engine's fair queue like everything else. All completions of a queue pair
come in the order of posting, so the oldest entry of ``out`` is the one that has completed.

A transfer holds its local memory until the device has let go of it, also when the user has given it up: then no further
fragment is posted, and those that were posted end first. When the link fails, the device may touch the memory until
the queue pair is silenced; it is held until :meth:`OneSided.release`.
"""
import logging
from collections import deque

cimport cython
from cpython.buffer cimport PyBUF_STRIDED_RO, PyBuffer_IsContiguous, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t

from ..plain cimport check_plain
from .._cq cimport CompletionPoller
from ..datapath._fairness cimport NEEDS_CALL, NEEDS_MORE_ROOM
from ..datapath._qp cimport Flow, QueuePair
from ..datapath._send_queue cimport SQ_RESERVE
from ..datapath._verbs cimport (
    AIO_CHAIN_MAX,
    IBV_SEND_INLINE,
    IBV_SEND_SIGNALED,
    aio_chain,
    aio_chain_atomic,
    aio_chain_read,
    aio_chain_write,
)
from ..verbs._copy cimport aio_copy
from ..verbs._spans cimport Spans, span

from anyio import ClosedResourceError

from ..wake.escaping import contain

logger = logging.getLogger("aiordma.memory")

cdef enum:
    LONGEST_INLINE = 1 << 20
    CHAIN_BYTES = 1 << 21       # of one chain: the device may copy it while it is posted
    SPIN_NS = 1_000_000         # a long transfer polls for no longer: others of the loop want their turn

cpdef enum:
    READ = 0
    WRITE = 1
    FETCH_ADD = 2
    COMPARE_SWAP = 3


@cython.final
@cython.freelist(16)
cdef class Transfer:
    def when_done(self, on_done) -> None:
        """Have ``on_done(transfer)`` called when the device has let go. It is not done yet."""
        self.on_done = on_done

    def forget_buffer(self) -> None:
        """What was read first into a stage is not copied any more."""
        self.stage = 0
        if self.has_view:
            self.has_view = False
            PyBuffer_Release(&self.view)

    cdef int let_go(self) except -1:
        """The device touches the memory no more."""
        self.keep = None
        if self.has_view:
            self.has_view = False
            PyBuffer_Release(&self.view)
        return 0

    cdef uint32_t next_piece(self, uint32_t most, uint64_t *local, uint64_t *remote) noexcept:
        """The next fragment: as long as both ends lie in one piece."""
        cdef uint64_t n
        if self.local_done == self.local.length:
            self.local += 1
            self.local_done = 0
        if self.remote_done == self.remote.length:
            self.remote += 1
            self.remote_done = 0
        n = min(self.local.length - self.local_done, self.remote.length - self.remote_done)
        if n > most:
            n = most
        local[0] = self.local.start + self.local_done
        remote[0] = self.base + self.remote.start + self.remote_done
        self.local_done += n
        self.remote_done += n
        self.posted += n
        return <uint32_t>n

    def __dealloc__(self):
        if self.has_view:
            PyBuffer_Release(&self.view)


@cython.final
cdef class OneSided(Flow):
    """The transfers of one peer on a link.

    :param qp: the link.
    :param fragment: most bytes of one READ or WRITE. A device that takes that much inline copies while it is posted
        to; then fragments are as long as it takes, up to 1 MiB.
    """

    def __init__(self, QueuePair qp, uint32_t fragment):
        self.waiting, self.out, self.held = deque(), deque(), []
        self.takes_any_buffer = qp.max_inline >= fragment
        self.fragment = max(fragment, min(qp.max_inline, LONGEST_INLINE)) if self.takes_any_buffer else fragment
        qp.register(self)

    @property
    def under_way(self) -> int:
        """Chains that were posted and have not completed."""
        return len(self.out)

    @property
    def over(self) -> bool:
        """Closed, and nothing of it is in use any more."""
        return self.gone and not self.held

    # ---- beginning. The caller looks at the transfer, or calls when_done(), before anything else of the loop runs.

    def whole(self, int op, buffer, Py_ssize_t length, uint32_t lkey, uint64_t remote, uint32_t rkey, uint64_t stage):
        """READ into, or WRITE, one buffer of ``length`` bytes, and :meth:`spin`. None: it is no contiguous buffer,
        and nothing was begun.

        :param lkey: 0 for WRITEs on a device that :attr:`takes_any_buffer`; else of ``stage``.
        :param stage: registered memory that is read into first, and then copied from; 0: none.
        :raises ValueError: it has another length. :raises BufferError: it is read-only.
        """
        cdef Transfer transfer = self.new(op, lkey, remote, rkey)
        try:
            PyObject_GetBuffer(buffer, &transfer.view, PyBUF_STRIDED_RO)
        except TypeError:
            return None         # perhaps an array that is no buffer
        transfer.has_view = True
        check_plain(buffer)
        if op == READ and transfer.view.readonly:
            raise BufferError("what is read into must be writable")
        if transfer.view.len != length:
            raise ValueError(f"the buffer has {transfer.view.len} bytes, this remote memory {length}: slice it")
        if not PyBuffer_IsContiguous(&transfer.view, b"C"):
            return None
        transfer.stage = stage
        transfer.local_one = span(stage if stage else <uint64_t><uintptr_t>transfer.view.buf, length)
        transfer.remote_one = span(0, length)
        transfer.length = length
        self.do_one(transfer)
        return transfer

    def at(self, int op, uint64_t address, uint64_t length, uint32_t lkey, uint64_t remote, uint32_t rkey,
           keep, bint opaque) -> Transfer:
        """The same for memory at an address, which ``keep`` keeps.

        :param opaque: the address is the device's: the CPU cannot read there.
        """
        cdef Transfer transfer = self.new(op, lkey, remote, rkey)
        transfer.local_one, transfer.remote_one = span(address, length), span(0, length)
        transfer.length, transfer.keep, transfer.opaque = length, keep, opaque
        self.do_one(transfer)
        return transfer

    def pieces(self, int op, Spans local, Spans places, *, uint32_t lkey, uint64_t base, uint32_t rkey,
               bint opaque=False) -> Transfer:
        """The same for many pieces: ``places`` are offsets from ``base``, and have as many bytes as ``local``."""
        cdef Transfer transfer = self.new(op, lkey, base, rkey)
        if local.nbytes != places.nbytes:
            raise ValueError(f"{local.nbytes} bytes here, {places.nbytes} there")
        transfer.local, transfer.remote, transfer.length = local.at, places.at, local.nbytes
        transfer.keep, transfer.opaque = (local, places), opaque
        self.start(transfer)
        return transfer

    def atomic(self, int op, uint64_t address, *, uint32_t lkey, uint64_t remote, uint32_t rkey, uint64_t value,
               uint64_t compare, keep) -> Transfer:
        """Add ``value`` to the word at ``remote``, or swap it for ``compare``; the old one goes to ``address``."""
        cdef Transfer transfer = self.new(op, lkey, remote, rkey)
        transfer.local_one, transfer.remote_one, transfer.length = span(address, 8), span(0, 8), 8
        transfer.value, transfer.compare, transfer.keep = value, compare, keep
        self.start(transfer)
        return transfer

    cdef Transfer new(self, int op, uint32_t lkey, uint64_t base, uint32_t rkey):
        cdef Transfer transfer
        if self.error is not None:
            raise self.error.with_traceback(None)
        if self.closed:
            raise ClosedResourceError("this end was closed")
        transfer = Transfer.__new__(Transfer)
        transfer.op, transfer.lkey, transfer.base, transfer.rkey = op, lkey, base, rkey
        transfer.local, transfer.remote = &transfer.local_one, &transfer.remote_one
        return transfer

    cdef int start(self, Transfer transfer) except -1:
        if transfer.length == 0:
            return self.finish(transfer, None)
        self.waiting.append(transfer)
        try:
            return self.pump()
        except MemoryError:
            if transfer.posted:
                return self.qp.lose_count(None)     # its user must not be told that nothing was done
            self.waiting.remove(transfer)
            raise

    cdef int do_one(self, Transfer transfer) except -1:
        if transfer.op != WRITE or not self.may_be_at_once(transfer):
            self.start(transfer)
        elif self.at_once(transfer):
            return 0
        self.spin(transfer)
        return 0

    cdef bint may_be_at_once(self, Transfer transfer) noexcept:
        cdef QueuePair qp = self.qp
        return (qp.astray != &qp.no_count and not qp.diverted and not qp.failed and 0 < transfer.length <= self.fragment
                and not self.waiting and not self.out and not qp.cq.fair_queue.waiting and self.has_room())

    cdef bint at_once(self, Transfer transfer) except -1:
        """A WRITE to a device that copies while it is posted to, and says whether it has: then there is nothing to wait
        for, and no completion is needed. After a copy of a megabyte, each line of code has to come from far away."""
        cdef aio_chain chain
        cdef QueuePair qp = self.qp
        cdef uint64_t astray = qp.astray[0], local, remote
        cdef unsigned int signalled = qp.next_flags(False)
        cdef uint32_t n = transfer.next_piece(self.fragment, &local, &remote)
        chain.length = 0
        aio_chain_write(&chain, qp._send_id(&chain), local, n, transfer.lkey,
                        signalled | (IBV_SEND_INLINE if n <= qp.max_inline and not transfer.opaque else 0), remote,
                        transfer.rkey)
        qp.post(&chain)
        if qp.failed:
            self.finish(transfer, self.error)
            return True
        if qp.astray[0] == astray:
            self.finish(transfer, None)
            if signalled and qp.cq.poll():
                qp.cq.schedule()
            return True
        # It waits, or goes over a wire: the completion of an empty one behind it tells its end.
        transfer.under_way = 1
        try:
            self.out.append(transfer)
        except MemoryError:
            qp.lose_count(None)
            self.finish(transfer, self.error)
            return True
        chain.length = 0
        aio_chain_write(&chain, qp._send_id(&chain), 0, 0, 0, 0, remote, transfer.rkey)
        qp.post_fragment(self, &chain, 1)
        return False

    def give_up(self, Transfer transfer) -> None:
        """Post no more of it. ``on_done`` comes when what was posted has ended."""
        if transfer.done or transfer.gone or transfer.posted == transfer.length:
            return
        self.waiting.remove(transfer)
        transfer.gone = True
        if transfer.under_way == 0:
            self.finish(transfer, None)

    # ---- posting

    cdef bint has_room(self) noexcept:
        return self.qp.cq.fragments_free() > 0 and self.qp.sq_free() > SQ_RESERVE + 1

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
            if transfer.op != WRITE and self.reads >= qp.max_reads:
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
        """Post a chain: one doorbell and one completion for all of it."""
        cdef aio_chain chain
        cdef QueuePair qp = self.qp
        cdef uint64_t most = transfer.posted + CHAIN_BYTES
        cdef uint32_t room = min(min(qp.sq_free() - SQ_RESERVE - 1, qp.cq.fragments_free()), <uint32_t>AIO_CHAIN_MAX)
        if transfer.op != WRITE:
            room = min(room, qp.max_reads - self.reads)
        self.out.append(transfer)       # first: it needs memory, and then nothing has changed yet
        chain.length = 0
        while transfer.posted < transfer.length and <uint32_t>chain.length < room and transfer.posted < most:
            self.add(transfer, &chain)
        if transfer.op != WRITE:
            self.reads += <uint32_t>chain.length
        transfer.under_way += 1
        if transfer.posted == transfer.length:
            self.waiting.popleft()
        return qp.post_fragment(self, &chain, chain.length, chain.length)

    cdef int add(self, Transfer transfer, aio_chain *chain) except -1:
        cdef QueuePair qp = self.qp
        cdef uint64_t local, remote
        cdef uint32_t n = transfer.next_piece(self.fragment, &local, &remote)
        cdef uint64_t number = qp._send_id(chain)
        if transfer.op == WRITE:
            aio_chain_write(chain, number, local, n, transfer.lkey,
                            IBV_SEND_INLINE if n <= qp.max_inline and not transfer.opaque else 0, remote, transfer.rkey)
        elif transfer.op == READ:
            aio_chain_read(chain, number, local, n, transfer.lkey, 0, remote, transfer.rkey)
        else:
            aio_chain_atomic(chain, number, local, transfer.lkey, transfer.op == COMPARE_SWAP, transfer.value,
                             transfer.compare, remote, transfer.rkey)
        return 0

    # ---- completions

    cdef void on_fragment_done(self, uint64_t count) noexcept:
        cdef Transfer transfer
        if self.qp.failed or not self.out:
            return              # on_broken() ends everything
        transfer = self.out.popleft()
        transfer.under_way -= 1
        if transfer.op != WRITE:
            self.reads -= <uint32_t>count
        if self.waiting:
            self.qp.cq.fair_queue.add(self)     # which is served next
        if transfer.under_way == 0 and (transfer.posted == transfer.length or transfer.gone):
            self.finish(transfer, None)
            self.leave_if_done()

    cdef int finish(self, Transfer transfer, object error) except -1:
        transfer.done, transfer.error = True, error
        if transfer.stage and error is None:
            aio_copy(transfer.view.buf, <void *><uintptr_t>transfer.stage, transfer.length)
        callback, transfer.on_done = transfer.on_done, None
        if error is None or transfer.under_way == 0:
            transfer.let_go()
        else:
            self.held.append(transfer)
        if callback is None:
            return 0            # its user looks at it
        if self.qp is not None:
            self.qp.cq.wakes += 1
        try:
            callback(transfer)
        except BaseException as failure:
            if not contain(failure):
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

    def soon(self) -> None:
        """Look for completions in the next turn of the loop. For a transfer that nothing waits for yet."""
        self.qp.cq.schedule()

    cpdef bint spin(self, Transfer transfer) except -1:
        """Look for completions, and where the policy allows it now, for a short while; whether it is done. For an
        operation that would otherwise wait."""
        cdef CompletionPoller cq
        if transfer.done:
            return True
        cq = self.qp.cq
        cq.flush()
        # One look that needs neither the clock nor to give up the GIL: the software device has often ended it already.
        if cq.poll():
            cq.schedule()
        if transfer.done or self.spins(transfer, cq):
            return True
        cq.will_park()
        cq.park()
        return transfer.done

    cdef bint spins(self, Transfer transfer, CompletionPoller cq) except -1:
        cdef int64_t started = cq.clock.ns()
        cdef uint64_t woken = cq.wakes
        if not cq.may_spin():
            return False
        cq.busy_polls += 1
        while cq.spin_once(started + cq.spin.budget_ns):
            if transfer.done:
                cq.spin_paid(started)
                return True
            if cq.wakes != woken or cq.clock.ns() - started > SPIN_NS:
                return False        # something else of this loop was woken, or waits: let it run
            cq.flush()
        cq.spin_wasted()
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
        """The queue pair is silenced: no memory is in use any more."""
        cdef Transfer transfer
        for transfer in self.held:
            transfer.let_go()
        self.held.clear()
