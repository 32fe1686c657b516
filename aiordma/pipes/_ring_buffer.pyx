# cython: language_level=3, boundscheck=False, wraparound=False
"""A stream whose next bytes go straight into a buffer of its user, who waits for exactly them.

It takes the steps of a ring's replacement (``_ring_resize.pyx``). When the writer has paused, the owner reads what the
ring has into the beginning of the buffer and names the rest of it; the writer writes there until it is full, and then
goes on in the ring. Cursors count on all the while, and what is placed counts as consumed. So leaving RDMA finds each
byte in one place, also with half a buffer (``links/placed_buffer.py`` directs it).
"""
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from ..proto.cursor cimport most_placed
from ._ring cimport RingPipe
from ._ring_cursors cimport ABNORMAL_CLOSE, SENDING_DONE
from ._ring_failover cimport LEFT, ON_RDMA
from ._ring_placing cimport FIRST_BYTES, Placing


cpdef bint write_into(RingPipe ring, uint64_t addr, uint32_t rkey, uint64_t nbytes) except -1:
    """Writer: the next bytes go into this buffer of the peer's, and those behind them to the ring. False: this end had
    not paused, or so many bytes cannot be."""
    cdef Placing placing
    if not ring.paused or ring.tx.place(nbytes) < 0:
        return False
    placing = Placing()
    placing.first, placing.addr, placing.rkey, placing.most = ring.tx.prod, addr, rkey, FIRST_BYTES
    ring.placing = placing
    ring.paused = False
    ring.wake_writers()
    return True


def room_in_buffer(RingPipe ring) -> int:
    """Writer: how many of the next bytes go into the buffer that it was named."""
    return ring.tx.placed_until - ring.tx.prod if ring.tx.prod < ring.tx.placed_until else 0


def was_slow(RingPipe ring) -> bool:
    """Writer: it has filled a buffer, and most of that took the device's slow path."""
    return ring.placing is not None and ring.placing.was_slow(ring.cursors)


cdef class RingBuffer:
    """Owner: a writable, contiguous buffer for the next bytes to be read. Until :meth:`begin` they come by the ring, and
    the user reads them from there, into this buffer and in order.
    """
    cdef RingPipe ring
    cdef Py_buffer view
    cdef bint has_view
    cdef uint64_t first                 # the byte of the stream that the buffer begins with
    cdef uint64_t placed_from, placed_until
    cdef uint64_t filled_at_end

    cdef readonly bint placing          # the peer may write into the buffer

    def __init__(self, RingPipe ring not None, buffer):
        PyObject_GetBuffer(buffer, &self.view, PyBUF_WRITABLE)
        self.has_view = True
        self.ring = ring
        self.first = ring.rx.cons

    def __dealloc__(self):
        if self.has_view:
            PyBuffer_Release(&self.view)

    @property
    def nbytes(self) -> int:
        """Bytes in the buffer."""
        return self.view.len

    @property
    def filled(self) -> int:
        """How many of its bytes are there."""
        return self.ring.rx.cons - self.first if self.has_view else self.filled_at_end

    @property
    def settled(self) -> bool:
        """Nothing is written into the buffer any more."""
        cdef RingPipe ring = self.ring
        if not self.placing or ring.finished or ring.failure is not None or ring.failover.stage == LEFT:
            return True
        return ring.rx.placed() or ring.cursors.peer_has(SENDING_DONE | ABNORMAL_CLOSE)

    def take_unread(self, uint64_t position, uint64_t least):
        """The writer has paused at ``position``: read what is in the ring. Where the writer may go on, and for how many
        bytes; None: those that are missing are fewer than ``least``, or the stream is about to end.

        :raises ValueError: ``position`` cannot be.
        """
        cdef RingPipe ring = self.ring
        cdef uint64_t missing = self.view.len - (ring.rx.cons - self.first), at
        if ring.closed or ring.viewed or ring.failover.stage != ON_RDMA:
            return None
        if ring.rx.paused_at(position) < 0:
            raise ValueError(f"paused at byte {position}, which cannot be")
        if missing < least or missing - least < ring.rx.available():
            ring.wake_readers()
            return None
        if ring.rx.available():
            ring.copy_out(<unsigned char *>self.view.buf + (ring.rx.cons - self.first), ring.rx.available())
        at = position - self.first
        return <uintptr_t>self.view.buf + at, min(<uint64_t>self.view.len - at, most_placed(ring.rx.turn))

    def begin(self, uint64_t nbytes) -> bool:
        """The writer is told of the last ``nbytes`` bytes, behind all that was read. False: they cannot be so many."""
        cdef RingPipe ring = self.ring
        if ring.rx.place(nbytes) < 0:
            return False
        self.placed_from, self.placed_until = ring.rx.cons, ring.rx.placed_until
        self.placing = True
        return True

    def paused(self, uint64_t position) -> bool:
        """The writer has paused, perhaps before the buffer was full. False: ``position`` cannot be."""
        return self.ring.rx.paused_at(position) >= 0

    def end(self) -> None:
        """It is settled, and the user's again. Idempotent."""
        cdef RingPipe ring = self.ring
        cdef uint64_t placed
        if not self.has_view:
            return
        if self.placing:
            self.placing = False
            ring.rx.end_placing()
            placed = min(ring.rx.cons, self.placed_until) - self.placed_from
            ring.bytes_placed += placed
            ring.bytes_received += placed
            ring.receives += 1
        self.filled_at_end = ring.rx.cons - self.first
        self.has_view = False
        PyBuffer_Release(&self.view)
