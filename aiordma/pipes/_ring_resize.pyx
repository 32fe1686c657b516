# cython: language_level=3, boundscheck=False, wraparound=False
"""A ring is replaced by one of another size, while the stream lives.

The ring's owner offers another size; the writer pauses and says up to which byte it has written; the owner takes a
new ring, copies there what is unread, and names it; the writer goes on. So the two ends never disagree about the ring
that a byte is in, wherever the link fails between these steps (``proto.llcown.RingResize``; ``links/ring_size.py`` decides
about sizes). On RC the writer's message comes behind its last WRITE, so nothing is under way to the old ring then.

The writer can only pause where the device takes its data while a WRITE is posted: a mirror is as large as the peer's
ring, and what is under way is read from it.
"""
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from ..verbs._copy cimport aio_copy
from ._ring cimport RingPipe
from ._ring_failover cimport ON_RDMA


cdef enum:
    SLEEPS = 2              # for room, since the last offer: fewer may be chance


cpdef bint wants(RingPipe ring, uint32_t size):
    """Writer: whether a ring of this size would serve it better: it is smaller, or this end has slept for room."""
    cdef uint32_t slept = ring.room_sleeps
    ring.room_sleeps = 0
    return size < ring.tx_size or slept >= SLEEPS


cpdef object pause(RingPipe ring):
    """Writer: write nothing from now on. The bytes written since the stream began; None: this stream cannot pause."""
    if ring.tx is None or ring.mirror != NULL or ring.shut or ring.failure is not None or ring.qp.failed:
        return None
    if ring.failover.stage != ON_RDMA:
        return None
    ring.paused = True
    return ring.tx.prod


cpdef bint resume(RingPipe ring, uint64_t addr, uint32_t rkey, uint32_t size) except -1:
    """Writer: go on, in this ring of the peer's. False: it had not paused, or its unread bytes do not fit there."""
    if not ring.paused or ring.tx.resize(size) < 0:
        return False
    ring.paused = False
    ring.tx_addr, ring.tx_rkey, ring.tx_size = addr, rkey, size
    ring.failover.unproved = ring.failover.outlived
    ring.qp.expect(rkey)
    ring.step = max(ring.fragment, min(size >> 2, ring.qp.max_inline))
    ring.wake_writers()
    return True


cpdef int move(RingPipe ring, uint64_t position, uint64_t addr, uint32_t size) except -2:
    """Owner: the writer has paused at ``position``, and this ring takes the place of the present one, which is not in
    use any more when this returns (but see :func:`view_is_out`).

    0: done. 1: not now, unread bytes would not fit, or the stream is at its end. -1: ``position`` cannot be.
    """
    cdef unsigned char *memory = <unsigned char *><uintptr_t>addr
    cdef unsigned char *old = ring.rx_memory
    cdef uint32_t old_size = ring.rx_size, piece
    cdef uint64_t at
    cdef long long arrived
    if ring.closed or ring.failover.stage != ON_RDMA:
        return 1
    if position - ring.rx.told > size:
        # The writer counts as unread what it was not told of; the message gets there before the new ring's name.
        ring.announce(True)
    arrived = ring.rx.resize(position, size)
    if arrived < 0:
        return 1 if arrived == -2 else -1
    at = ring.rx.cons
    while at < position:
        piece = min(<uint32_t>(position - at), old_size - <uint32_t>(at & (old_size - 1)))
        piece = min(piece, size - <uint32_t>(at & (size - 1)))
        aio_copy(memory + (at & (size - 1)), old + (at & (old_size - 1)), piece)
        at += piece
    ring.rx_memory, ring.rx_size = memory, size
    ring.read_step = max(ring.fragment, size >> 2)
    ring.turned_at = ring.bytes_received
    if arrived:
        ring.judge_unread()
        ring.wake_readers()
    return 0


def is_paused(RingPipe ring) -> bool:
    """Whether this writer has paused, and waits for the name of the ring."""
    return ring.paused


def view_is_out(RingPipe ring) -> bool:
    """Whether the user has a view() of the ring that was not consumed: the memory must stay."""
    return ring.viewed


def recent_high_water(RingPipe ring) -> int:
    """Most bytes that waited in our ring since the last call."""
    cdef uint32_t highest = ring.cursors.recent_high_water
    ring.cursors.recent_high_water = ring.rx.available()
    return highest
