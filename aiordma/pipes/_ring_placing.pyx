# cython: language_level=3, boundscheck=False, wraparound=False
"""A writer whose next bytes go straight into a buffer of the peer's user, which waits for exactly them.

The first WRITE into a buffer is short. The software device does not know the buffer's key then, and takes the slow
path by the peer's CPU until it has learned the key; so each WRITE that went that way has to complete before the next.
From then on each WRITE is as long as the device takes inline, and copied while it is posted.

No cursor message is sent before the buffer is full or the user has nothing more to send: its reader waits for all of it.
"""
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from ..datapath._qp cimport QueuePair
from ..datapath._verbs cimport aio_chain, aio_chain_signal_last
from ..proto.cursor cimport TxWindow
from ._ring_cursors cimport CDC_BYTES, RingCursors

cdef class Placing:
    cdef bint may_write(self, QueuePair qp) noexcept:
        """Whether no earlier WRITE has to complete first."""
        if self.waits and <int>(qp.sq_retired - self.wait_until) >= 0:
            self.waits = False
        return not self.waits

    cdef bint covers(self, RingCursors cursors, uint64_t remote_addr) noexcept:
        """Whether a request for this address of the peer's is one of these."""
        return self.addr <= remote_addr < self.addr + (cursors.tx.placed_until - self.first)

    cdef uint32_t write(self, QueuePair qp, RingCursors cursors, const unsigned char *data, Py_ssize_t n,
                        bint announce) except? 0:
        """Post one WRITE of at most n bytes; their number. Its completion tells when the next may follow.

        :param announce: a cursor message may follow at once when the buffer is full.
        """
        cdef TxWindow tx = cursors.tx
        cdef aio_chain chain
        cdef uint32_t want = <uint32_t>min(min(<uint64_t>n, tx.placed_until - tx.prod), <uint64_t>self.most)
        chain.length = 0
        qp.add_write(&chain, <uint64_t><uintptr_t>data, want, 0, self.addr + (tx.prod - self.first), self.rkey)
        aio_chain_signal_last(&chain)
        qp.sq_unsignalled = 0
        tx.produce(want)
        cursors.unannounced += want
        if announce and tx.prod == tx.placed_until and qp.can_message():
            cursors.write(qp.message_room())
            qp.add_message(&chain, CDC_BYTES, False)
        qp.post(&chain)
        return want

    cdef void written(self, QueuePair qp, uint32_t n, bint at_once) noexcept:
        """:param at_once: the last WRITE, of n bytes, was carried out while it was posted."""
        self.waits = not at_once
        self.wait_until = qp.sq_posted
        if at_once:
            self.at_once += n
        # The key may be known by the next one. Where that never helps (the peer is on another host, or the kernel does
        # not let this process write into it) the buffer is filled all the same.
        self.most = min(qp.max_inline, <uint32_t>PLACE_STEP if at_once else min(2 * self.most, <uint32_t>PLACE_STEP))

    cdef bint was_slow(self, RingCursors cursors) noexcept:
        """The buffer is full, and most of it took the slow path: the ring is better."""
        cdef TxWindow tx = cursors.tx
        return tx.prod >= tx.placed_until and 2 * self.at_once < tx.placed_until - self.first
