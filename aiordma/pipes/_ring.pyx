# cython: language_level=3, boundscheck=False, wraparound=False
"""A byte stream over two SMC-style rings: station 2 of the path of a byte, and its end.

Each side owns a receive ring (RMB element) that the peer fills by RDMA WRITE. After writing, the sender tells its
producer cursor, and its consumer cursor for the other direction, in a 44-byte CDC message on the same QP, so
that the data is in place before the cursor is seen (RFC 7609 section 4; net/smc/smc_tx.c, smc_cdc.c).

Here are the two copies, into the peer's ring and out of ours, and the polling of those who wait for either. The cursors,
their messages and the end are in _ringbase.pyx, the way from RDMA to TCP in _ringleave.pyx.
"""
from typing import NamedTuple

from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy

from anyio import BrokenResourceError, ClosedResourceError

from .._cq cimport CompletionPoller, clock_ns
from ..datapath._qp cimport QueuePair
from ._ring_cursors cimport ABNORMAL_CLOSE, CLOSED, SENDING_DONE
from ._ring_failover cimport RingLeave
from ..datapath._verbs cimport aio_chain

from ..errors import LinkError

cdef enum:
    CDC_BYTES = 44
    BIG_RECEIVE = 32768     # from here on results come from the engine's spares
    SEND_STEP = 262144      # most bytes of one poll_send(): then others of the loop may want their turn


class PipeStatistics(NamedTuple):
    #: calls of try_send() that placed something
    sends: int
    #: calls of try_receive() and try_receive_into() that returned something, and consume()
    receives: int
    bytes_sent: int
    bytes_received: int
    #: cursor messages
    cdcs_sent: int
    cdcs_received: int
    #: how often the peer's ring was full
    times_blocked: int
    #: most bytes that waited in our ring
    receive_high_water: int
    ring_bytes: int
    peer_ring_bytes: int


cdef class RingPipe(RingLeave):
    """One connection on a link. Non-blocking; single-threaded, in the thread of the engine's loop.

    :param qp: the link it runs on.
    :param rx_addr, rx_size: our ring (registered with remote write), a power of two of bytes.
    :param fragment: most bytes of one WRITE that the device carries out by itself, and least of a cursor step. Where the device
        copies while a WRITE is posted, steps are a quarter of the ring: enough for both ends to work at the same time.
    :param own: what is given back by ``on_finished(pipe)``; kept here so that it lives as long as the rings are in use.
    """

    def statistics(self) -> PipeStatistics:
        sent, received = self.counters
        return PipeStatistics(self.sends, self.receives, sent, received, self.cdcs_sent, self.cdcs_received, self.times_blocked, self.rx_high_water, self.rx_size,
                              self.tx_size if self.onward is None else 0)

    # ---- sending

    cdef int check_sendable(self) except -1:
        if self.closed or self.eof_sent:
            raise ClosedResourceError
        if self.failure is not None:
            raise BrokenResourceError from self.failure
        if self.cdc is None:
            raise RuntimeError("not connected yet")
        if self.shut:
            raise BrokenResourceError from LinkError("the peer has closed the stream")
        return 0

    def try_send(self, data, Py_ssize_t start=0) -> int:
        """Place as much of ``data[start:]`` as the peer's ring has room for; the number of bytes, 0 when there is no room.

        :raises ClosedResourceError: this side has closed the stream or finished sending.
        :raises BrokenResourceError: the link broke or the peer has closed; the cause is chained.
        """
        cdef Py_buffer view
        cdef Py_ssize_t n
        self.check_sendable()
        if self.leaving:
            return 0 if self.onward is None else self.onward.try_send(data, start)
        if PyBytes_CheckExact(data):
            n = PyBytes_GET_SIZE(data) - start
            return self.place(<const unsigned char *>PyBytes_AS_STRING(data) + start, n) if n > 0 and start >= 0 else 0
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            n = view.len - start
            return self.place(<const unsigned char *>view.buf + start, n) if n > 0 and start >= 0 else 0
        finally:
            PyBuffer_Release(&view)

    def poll_send(self, data, Py_ssize_t start=0) -> int:
        """try_send(), and again whenever polling, as far as the policy allows it, has found room; the number of bytes. Less than
        SEND_STEP and than what there was: polling is over, park. One call for many fragments: to come back for each of
        them costs a bulk sender more than to post it."""
        cdef Py_buffer view
        cdef Py_ssize_t placed = 0, n
        self.check_sendable()
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            n = view.len - start
            while start >= 0 and placed < n and placed < SEND_STEP:
                if self.leaving:
                    if self.onward is not None:
                        placed += self.onward.try_send(data, start + placed)
                else:
                    placed += self.place(<const unsigned char *>view.buf + start + placed, n - placed)
                # What ends the stream is the next call's to tell.
                if placed == n or not self._spin(False) or self.shut or self.failure is not None:
                    break
        finally:
            PyBuffer_Release(&view)
        return placed

    cdef Py_ssize_t place(self, const unsigned char *data, Py_ssize_t n) except -1:
        cdef QueuePair qp = self.qp
        cdef aio_chain chain
        cdef Py_ssize_t placed = 0
        cdef uint32_t want, first, room, offset
        cdef uint64_t source, second
        cdef uint32_t lkey = 0
        while placed < n:
            room = self.room()
            if room == 0:
                if self.tx.free() > 0:
                    qp.wait_for_room(self)      # it is the device that has none
                elif self.reserved:
                    qp.cq.fair_queue.end_reservation(self)
                break
            want = self.step if n - placed > self.step else <uint32_t>(n - placed)
            if want > room:
                want = room
            offset = self.tx.offset()
            first = self.tx_size - offset
            if first > want:
                first = want
            if self.mirror != NULL:
                memcpy(self.mirror + offset, data + placed, first)
                memcpy(self.mirror, data + placed + first, want - first)
            if want <= qp.max_inline:
                source = <uint64_t><uintptr_t>(data + placed)
                second = source + first
            else:
                source, second, lkey = <uint64_t><uintptr_t>(self.mirror + offset), <uint64_t><uintptr_t>self.mirror, self.mirror_lkey
            chain.length = 0
            qp.add_write(&chain, source, first, lkey, self.tx_addr + offset, self.tx_rkey)
            if want > first:
                qp.add_write(&chain, second, want - first, lkey, self.tx_addr, self.tx_rkey)
            self.tx.produce(want)
            placed += want
            self.untold += want
            if qp.can_message() and not self.queued and (
                    self.untold >= self.step or qp.window.seq == qp.window.acked or (placed < n and self.tx.free() == 0)):
                self.tx.blocked = placed < n and self.tx.free() == 0
                self.build_cdc()
                qp.add_message(&chain, CDC_BYTES, lkey != 0)
            self.posting = True
            if lkey != 0:
                if not self.mirror_busy:
                    self.mirror_free_to = self.tx.prod - want
                self.mirror_busy += 1
                qp.post_fragment(self, &chain, self.tx.prod)
                lkey = 0
            else:
                qp.post(&chain)
            self.posting = False
            if self.reserved:
                qp.cq.fair_queue.end_reservation(self)
            if self.mirror == NULL:
                if qp.astray[0] != qp.astray_seen or qp.failed or qp.hook is not None:
                    qp.astray_seen = qp.astray[0]
                    self.keep(data + placed - want, want)
                elif self.kept is not None:
                    self.kept = None    # this WRITE is done, and so are those before it
            if qp.failed:
                self.bytes_sent += placed
                reason, self.late_reason = self.late_reason, None
                if reason is not None:
                    self.on_broken(reason)
                return placed
        self.bytes_sent += placed
        if placed:
            self.sends += 1
        if placed < n:
            self.times_blocked += 1
            if self.tx.mark_blocked():
                # The peer must know that we wait, or it might sit on its consumer cursor.
                self.tell = True
        if self.tell or self.untold:
            qp.enqueue(self)
        return placed

    cdef void on_fragment_done(self, uint64_t until) noexcept:
        self.mirror_free_to = until
        self.mirror_busy -= 1

    # ---- receiving

    def try_receive(self, Py_ssize_t max_bytes):
        """Up to max_bytes as bytes; None when there is nothing now, b"" when the peer has finished sending.

        :raises ClosedResourceError: this side has closed the stream.
        :raises BrokenResourceError: the link broke or the peer aborted (after everything that arrived has been read).
        """
        cdef uint32_t n = self.rx.available(), offset
        cdef bytes out
        if n == 0 or self.closed or max_bytes < 1:
            if not self.closed and max_bytes > 0 and self.onward is None and self.failure is None and not self.peer_has(
                    SENDING_DONE | ABNORMAL_CLOSE):
                return None
            return self._nothing(max_bytes)
        if n > max_bytes:
            n = <uint32_t>max_bytes
        offset = self.rx.offset()
        if n < BIG_RECEIVE and offset + n <= self.rx_size:
            out = PyBytes_FromStringAndSize(<char *>self.rx_memory + offset, n)
            self.consumed(n)
        else:
            out = self.qp.cq.spare.take(n)
            self.copy_out(<unsigned char *>PyBytes_AS_STRING(out), n)
        self.receives += 1
        return out

    cdef int copy_out(self, unsigned char *to, uint32_t n) except -1:
        """Read n bytes. The room goes back to the peer piece by piece: a sender that waits for it fills the ring again
        while the rest is still being copied."""
        cdef uint32_t offset, piece
        while n > 0:
            offset = self.rx.offset()
            piece = self.rx_size - offset
            if piece > self.give_back:
                piece = self.give_back
            if piece > n:
                piece = n
            memcpy(to, self.rx_memory + offset, piece)
            self.consumed(piece)
            to += piece
            n -= piece
        return 0

    def poll_receive(self, Py_ssize_t max_bytes):
        """try_receive(), after polling for as long as the policy allows when there is nothing yet: one call for the
        way of a round trip, on which every hundred nanoseconds count. What arrives while a large result is being copied goes
        into it as well."""
        cdef uint32_t n = self.rx.available(), most
        if n == 0:
            if not self._spin(True):
                return None if max_bytes > 0 else self._nothing(max_bytes)
            n = self.rx.available()
        if n < BIG_RECEIVE or n >= max_bytes or self.closed or self.onward is not None:
            return self.try_receive(max_bytes)
        # Not more than twice of what is certain: who keeps the result would keep memory that he does not see.
        most = 2 * n if max_bytes > 2 * <Py_ssize_t>n else <uint32_t>max_bytes
        return self.gather(n, most)

    cdef bytes gather(self, uint32_t n, uint32_t most):
        cdef CompletionPoller cq = self.qp.cq
        cdef uint64_t woken = cq.wakes
        cdef uint32_t got = 0
        cdef bytes out = cq.spare.take(most)
        while n > 0:
            self.copy_out(<unsigned char *>PyBytes_AS_STRING(out) + got, n)
            got += n
            if got == most or self.rx.available() == 0 and not (cq.look() and cq.wakes == woken):
                break
            if self.closed or self.onward is not None:
                break
            n = min(self.rx.available(), most - got)
        self.receives += 1
        return cq.spare.cut(out, got)

    def try_receive_into(self, buffer) -> int:
        """Fill a writable buffer; the number of bytes, -1 when there is nothing now, 0 when the peer has finished sending."""
        cdef Py_buffer view
        cdef uint32_t n = self.rx.available()
        if n == 0 and self.onward is not None and not self.closed:
            return self.onward.try_receive_into(buffer)
        PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
        try:
            if n == 0 or self.closed or view.len < 1:
                return 0 if self._nothing(view.len) is not None else -1
            if n > view.len:
                n = <uint32_t>view.len
            self.copy_out(<unsigned char *>view.buf, n)
        finally:
            PyBuffer_Release(&view)
        self.receives += 1
        return n

    def _nothing(self, Py_ssize_t max_bytes):
        if self.closed:
            raise ClosedResourceError
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, not {max_bytes}")
        if self.onward is not None and not self.peer_has(SENDING_DONE):
            return self.onward.try_receive(max_bytes)
        if self.peer_has(ABNORMAL_CLOSE) or (self.failure is not None and not self.peer_gone):
            raise BrokenResourceError from self.failure
        return b"" if self.at_eof else None

    def view(self) -> memoryview:
        """The readable bytes up to the ring's end, without a copy; may be empty. Valid until consume()."""
        cdef uint32_t n = self.rx.available(), first = self.rx_size - self.rx.offset()
        if n == 0 and self.onward is not None and not self.closed:
            return self.onward.view()
        if n == 0 or self.closed:
            self._nothing(1)
            return memoryview(b"")
        return PyMemoryView_FromMemory(<char *>self.rx_memory + self.rx.offset(), first if first < n else n, PyBUF_READ)

    def consume(self, Py_ssize_t n) -> None:
        """Give the first n bytes of view() back to the peer as credit."""
        if self.onward is not None and self.rx.available() == 0:
            self.onward.consume(n)
            return
        if n < 0 or n > self.rx.available():
            raise ValueError(f"consume({n}): {self.rx.available()} bytes are readable")
        if n and not self.closed:
            self.receives += 1
            self.consumed(<uint32_t>n)

    cdef int consumed(self, uint32_t n) except -1:
        self.rx.consume(n)
        self.bytes_received += n
        if self.rx.update_due():
            self.tell_peer(self.rx.peer_blocked)
        if self.onward is not None and self.rx.available() == 0:
            self.end_on_link()
        return 0

    # ---- hybrid polling

    def spin_readable(self) -> bool:
        """Post what was put off; then, where the policy allows it now, poll for a while instead of parking.
        True when there is something to read, EOF or an error."""
        return self._spin(True)

    def spin_writable(self) -> bool:
        return self._spin(False)

    cdef bint _holds(self, bint reading, uint32_t least):
        if self.failure is not None or self.closed:
            return True
        if reading:
            return self.rx.available() >= least or self.peer_has(SENDING_DONE)
        return self.peer_has(CLOSED) or self.room() >= least

    cdef bint _spin(self, bint reading, uint32_t least=1) except -1:
        """Poll until ``least`` bytes can be read (or sent), as long as the policy allows."""
        cdef CompletionPoller cq = self.qp.cq
        cdef int64_t started
        cdef uint64_t woken = cq.wakes
        cq.flush()
        if self.onward is not None and not (reading and self.rx.available()):
            return self.onward.spin_readable() if reading else self.onward.spin_writable()
        if self._holds(reading, least):
            return True
        if not cq.may_spin():
            cq.will_park()
            return False
        cq.spins += 1
        # One look first that needs neither the clock nor to give up the GIL: a busy peer has often answered already.
        if cq.poll():
            cq.schedule()
            if self._holds(reading, least):
                cq.spin_hits += 1
                return True
            if cq.wakes != woken:
                return False
            cq.flush()
        started = clock_ns()
        while cq.spin_once(started + cq.spin_ns):
            if self._holds(reading, least):
                cq.spin_paid(started)
                return True
            if cq.wakes != woken:
                return False        # it was for somebody else of this loop: let them run
            cq.flush()
        if not self._holds(reading, least):
            cq.spin_wasted()
            cq.will_park()
            return False
        return True
