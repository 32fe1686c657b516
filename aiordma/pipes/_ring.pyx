# cython: language_level=3, boundscheck=False, wraparound=False
"""A byte pipe over two SMC-style rings: station 2 of the path of a byte.

Each side owns a receive ring (RMB element) that the peer fills by RDMA WRITE. After writing, the sender announces its
producer cursor, and its consumer cursor for the other direction, in a 44-byte CDC message on the same QP, so
that the data is in place before the cursor is seen (RFC 7609 section 4; net/smc/smc_tx.c, smc_cdc.c).

When a CDC is sent: at once for the first writes of a turn of the loop (comes_first()), when nothing of ours is under way
on the link, or when a step is full; otherwise at the end of the loop's tick, or before this side polls or parks, whichever
is first. For a loop that is blocked, a thread sends it (datapath/_late.pyx). So a burst of small sends costs few messages,
and nothing is held back for longer than a tick or some milliseconds.

A ring pipe is made of parts: its state and its end (_ring_life.pyx), the cursors (_ring_cursors.pyx), and what it needs
to leave RDMA (_ring_failover.pyx). Users hold it inside a SwitchablePipe (_switchable.pyx); polling is in
_ring_polling.pyx, and the replacement of a ring by one of another size in _ring_resize.pyx.
"""
cimport cython
from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from ..plain cimport check_plain
from ..datapath._fairness cimport NEEDS_CALL, NEEDS_MORE_ROOM, NEEDS_RESERVATION
from ..datapath._qp cimport QueuePair
from ..datapath._send_queue cimport SQ_RESERVE
from ..proto.cdc cimport (
    CHANGE_CREDIT,
    CHANGE_DATA,
    CHANGE_INVALID,
    CHANGE_PEER_ABORTED,
    CHANGE_PEER_CLOSED,
    CHANGE_PEER_DONE,
    CHANGE_UPDATE_DUE,
    is_damaged,
)
from ..proto.cursor cimport TxWindow
from ..verbs._copy cimport aio_copy, bytes_of
from ._ring_cursors cimport ABNORMAL_CLOSE, CDC_BYTES, SENDING_DONE, RingCursors
from ._ring_failover cimport LEFT, ON_RDMA, QUIESCED, RingFailover
from ._ring_life cimport RingLife

from anyio import BrokenResourceError, ClosedResourceError

from ..errors import LinkError, RemoteProtocolError

cdef enum:
    FIRSTS = 3              # writes of one turn that are announced at once
    CHAIN = 3               # most WRs that one step of a send posts
    BIG_RECEIVE = 32768     # from here on results come from the engine's pool


@cython.final
cdef class RingPipe(RingLife):
    """The rings of one stream on a link. Non-blocking; single-threaded, in the thread of the engine's loop.

    :param qp: the link it runs on.
    :param rx_addr, rx_size: our ring (registered with remote write), a power of two of bytes.
    :param fragment: most bytes of one WRITE that the device carries out by itself, and least of a cursor step. Where
        the device copies while a WRITE is posted, steps are a quarter of the ring: enough for both ends to work at
        the same time.
    :param owner: holds the memory and the TCP connection (``contracts.RingOwner``); kept here so that it lives as
        long as the rings are in use. None from ``on_finished(pipe)`` on, which releases what it holds.
        """

    def __init__(self, QueuePair qp, *, uint64_t rx_addr, uint32_t rx_size, uint32_t fragment=65536, object owner=None):
        self.rx_memory = <unsigned char *><uintptr_t>rx_addr
        self.rx_size = rx_size
        self.cursors = RingCursors(rx_size)
        self.rx = self.cursors.rx
        self.failover = RingFailover()
        self.step = self.fragment = fragment
        self.read_step = max(fragment, rx_size >> 2)
        self.owner = owner
        qp.register(self)

    def connect(self, *, uint32_t peer_token, uint64_t tx_addr, uint32_t tx_rkey, uint32_t tx_size) -> None:
        """Take the peer's half, from its Accept or Confirm."""
        self.tx_addr, self.tx_rkey, self.tx_size = tx_addr, tx_rkey, tx_size
        self.cursors.connect(peer_token, tx_size)
        self.cursors.cdc.checked = self.qp.check_words
        self.tx = self.cursors.tx
        self.qp.expect(tx_rkey)
        self.failover.mirror_size = tx_size
        self.failover.outlived = self.failover.unproved = self.mirror == NULL and self.qp.shows_end()
        if self.mirror == NULL:
            self.step = max(self.fragment, min(tx_size >> 2, self.qp.max_inline))
        self.take_early()
        if self.failure is not None and self.qp.failed and not self.closed:
            # The link failed before there was anything to save; now the stream may fail over.
            reason, self.failure = self.failure, None
            self.on_broken(reason)

    def use_mirror(self, uint64_t addr, uint32_t lkey) -> None:
        """Registered memory as large as the peer's ring: the device does not take whole fragments inline."""
        self.mirror = self.failover.mirror = <unsigned char *><uintptr_t>addr
        self.mirror_lkey = lkey
        self.failover.outlived = self.failover.unproved = False

    @property
    def writable(self) -> int:
        """Bytes that can be sent now: the peer's ring has room, and the device for work requests."""
        return 0 if self.failure is not None or self.shut or self.tx is None else self.room()

    # ---- sending

    cdef int check_sendable(self) except -1:
        if self.closed or self.eof_sent:
            raise ClosedResourceError("this end was closed, or has finished sending")
        if self.failure is not None:
            raise BrokenResourceError(f"the connection is lost: {self.failure}") from self.failure
        if self.tx is None:
            raise RuntimeError("not connected yet")
        if self.shut:
            raise BrokenResourceError("the peer has closed the stream") from LinkError("the peer has closed the stream")
        return 0

    cpdef Py_ssize_t try_send(self, data, Py_ssize_t start=0) except -1:
        """Put as much of ``data[start:]`` as the peer's ring has room for; the number of bytes.

        :raises ClosedResourceError: this side has closed the stream or finished sending.
        :raises BrokenResourceError: the link broke or the peer has closed; the cause is chained.
        """
        cdef Py_buffer view
        cdef Py_ssize_t n
        self.check_sendable()
        if self.failover.stage != ON_RDMA:
            return 0
        if PyBytes_CheckExact(data):
            n = PyBytes_GET_SIZE(data) - start
            return self.put_bytes(<const unsigned char *>PyBytes_AS_STRING(data) + start, n) if n > 0 and start >= 0 else 0
        check_plain(data)
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            n = view.len - start
            return self.put_bytes(<const unsigned char *>view.buf + start, n) if n > 0 and start >= 0 else 0
        finally:
            PyBuffer_Release(&view)

    # long: each byte's way, from the room for it to the request, with no call in between that could be saved
    cdef Py_ssize_t put_bytes(self, const unsigned char *data, Py_ssize_t n) except -1:
        cdef QueuePair qp = self.qp
        cdef RingCursors cursors = self.cursors
        cdef TxWindow tx = self.tx
        cdef aio_chain chain
        cdef Py_ssize_t placed = 0
        cdef uint32_t want, first, room, offset
        cdef uint64_t source, second
        cdef uint32_t lkey = 0
        while placed < n:
            room = self.room()
            if room == 0:
                self.give_way()
                break
            want = self.step if n - placed > self.step else <uint32_t>(n - placed)
            want = min(want, room)
            offset = tx.offset()
            first = min(self.tx_size - offset, want)
            if self.mirror != NULL:
                aio_copy(self.mirror + offset, data + placed, first)
                aio_copy(self.mirror, data + placed + first, want - first)
            if want <= qp.max_inline:
                source = <uint64_t><uintptr_t>(data + placed)
                second = source + first
            else:
                source, second = <uint64_t><uintptr_t>(self.mirror + offset), <uint64_t><uintptr_t>self.mirror
                lkey = self.mirror_lkey
            chain.length = 0
            qp.add_write(&chain, source, first, lkey, self.tx_addr + offset, self.tx_rkey)
            if want > first:
                qp.add_write(&chain, second, want - first, lkey, self.tx_addr, self.tx_rkey)
            tx.produce(want)
            placed += want
            cursors.unannounced += want
            if qp.can_message() and not self.queued and (
                    cursors.unannounced >= self.step or (placed < n and tx.free() == 0)
                    or (not (self.pushes and qp.cq.between.crowded) and self.comes_first())):
                tx.blocked = placed < n and tx.free() == 0
                cursors.write(qp.message_room(), qp.cq.second)
                qp.add_message(&chain, CDC_BYTES, lkey != 0)
                self.data_at = qp.messages_sent
                if qp.held and placed == n:
                    qp.say_last(self.queued)
            self.posting = True
            try:
                if lkey != 0:
                    self.post_copied(&chain, want)
                    lkey = 0
                else:
                    self.failover.post(qp, &chain)
            except MemoryError:
                qp.lose_count(None)
            finally:
                self.posting = False
            if self.reserved:
                qp.cq.fair_queue.end_reservation(self)
            if self.mirror == NULL:
                self.failover.keep_unfinished(qp, tx.prod, data + placed - want, want)
            if qp.failed:
                self.note_failure(placed)
                return placed
        self.count_placed(placed, n)
        return placed

    cdef inline bint comes_first(self) noexcept:
        """Whether what was placed is announced at once: the loop may not come back soon, nor this process live on. The
        first writes of a turn are (a head and its body), but of a stream that writes much in each turn only the first."""
        cdef QueuePair qp = self.qp
        cdef bint idle = qp.window.seq == qp.window.acked
        if self.turn != qp.cq.turns or idle:
            self.turn = qp.cq.turns
            self.firsts = 1 if self.put_off else FIRSTS
            self.put_off = False
        if idle:
            return True
        if self.firsts == 0:
            self.put_off = True
            return False
        self.firsts -= 1
        return True

    cdef int note_failure(self, Py_ssize_t placed) except -1:
        """The link has failed while something was posted."""
        self.bytes_sent += placed
        reason, self.late_reason = self.late_reason, None
        if reason is not None:
            self.on_broken(reason)
        return 0

    cdef int give_way(self) except -1:
        """Nothing fits: wait for the device if it is the device that has no room."""
        cdef QueuePair qp = self.qp
        if self.tx.free() > 0 and not self.paused:
            qp.wait_for_room(self)
        elif self.reserved:
            qp.cq.fair_queue.end_reservation(self)
        return 0

    cdef int post_copied(self, aio_chain *chain, uint32_t want) except -1:
        """Post a WRITE of ``want`` bytes from the mirror, which stay there until it completes."""
        if not self.mirror_busy:
            self.mirror_free_to = self.tx.prod - want
        self.mirror_busy += 1
        self.qp.post_fragment(self, chain, self.tx.prod)
        return 0

    cdef int count_placed(self, Py_ssize_t placed, Py_ssize_t n) except -1:
        """Account for ``placed`` of ``n`` bytes, and queue a cursor message if one is due."""
        cdef RingCursors cursors = self.cursors
        self.bytes_sent += placed
        if placed:
            self.sends += 1
            if self.pushes:
                self.qp.cq.sent()
        if placed < n:
            self.times_blocked += 1
            if self.mark_blocked():
                # The peer must learn that this end waits, or it might hold back its consumer cursor.
                cursors.update_wanted = True
        else:
            self.waits = False
        if cursors.update_wanted or cursors.unannounced:
            try:
                self.qp.enqueue(self)
                if cursors.unannounced:
                    self.leave_will()
                self.qp.cq.flush_if_late()
            except MemoryError:
                self.qp.lose_count(None)       # the bytes are placed: their sender must not send them again
        return 0

    cdef void leave_will(self) noexcept:
        """What was placed is announced later: as this process may be killed before, the peer's device has the message
        already."""
        cdef unsigned char message[CDC_BYTES]
        if self.qp.may_will(self.queued) and self.failover.stage == ON_RDMA:
            self.cursors.cdc.foretell(message)
            self.qp.will(message, CDC_BYTES)

    cdef uint32_t room(self) noexcept:
        """Bytes the next step of a send may put there. What is under way in the mirror is the device's."""
        cdef uint32_t free = self.tx.free(), own
        cdef QueuePair qp = self.qp
        if qp.sq_free() <= SQ_RESERVE + CHAIN * (1 + qp.reservations - self.reserved) or self.failover.stage != ON_RDMA:
            return 0
        if self.paused:
            return 0
        if self.failover.unproved and qp.hook is None:
            free = self.failover.outlives(qp, self.tx.prod, free)
        if self.mirror != NULL:
            if self.mirror_busy:
                own = self.tx_size - <uint32_t>(self.tx.prod - self.mirror_free_to)
                if own < free:
                    free = own
            if not qp.cq.may_post_fragment(self.reserved):
                return 0
        return free

    cdef void on_fragment_done(self, uint64_t until) noexcept:
        self.mirror_free_to = until
        self.mirror_busy -= 1

    # ---- receiving

    cpdef object try_receive(self, Py_ssize_t max_bytes):
        """Up to max_bytes as bytes; None when there is nothing now, b"" when the peer has finished sending.

        :raises ClosedResourceError: this side has closed the stream.
        :raises BrokenResourceError: the link broke or the peer aborted (after everything that arrived has been read).
        """
        cdef uint32_t n = self.rx.available(), offset
        cdef bytes out
        if n == 0 or self.closed or max_bytes < 1:
            return self.nothing(max_bytes)
        if n > max_bytes:
            n = <uint32_t>max_bytes
        offset = self.rx.offset()
        if n < BIG_RECEIVE and offset + n <= self.rx_size:
            out = bytes_of(self.rx_memory + offset, n)
            self.consumed(n)
        else:
            out = self.qp.cq.spare.take(n)
            self.copy_out(<unsigned char *>PyBytes_AS_STRING(out), n)
        self.receives += 1
        return out

    cdef int copy_out(self, unsigned char *to, uint32_t n) except -1:
        """Read n bytes. The room is announced piece by piece: a sender that waits for it fills the ring again
        while the rest is still being copied."""
        cdef uint32_t offset, piece
        while n > 0:
            offset = self.rx.offset()
            piece = self.rx_size - offset
            if piece > self.read_step:
                piece = self.read_step
            if piece > n:
                piece = n
            aio_copy(to, self.rx_memory + offset, piece)
            self.consumed(piece)
            to += piece
            n -= piece
        return 0

    cpdef Py_ssize_t try_receive_into(self, buffer) except -2:
        """Fill a writable buffer; the number of bytes, -1: there is nothing now, 0: the peer has finished sending."""
        cdef Py_buffer view
        cdef uint32_t n = self.rx.available()
        check_plain(buffer)
        PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
        try:
            if n == 0 or self.closed or view.len < 1:
                return 0 if self.nothing(view.len) is not None else -1
            if n > view.len:
                n = <uint32_t>view.len
            self.copy_out(<unsigned char *>view.buf, n)
        finally:
            PyBuffer_Release(&view)
        self.receives += 1
        return n

    cpdef object view(self):
        """The readable bytes up to the ring's end, without a copy; may be empty. Valid until consume()."""
        cdef uint32_t n = self.rx.available(), first = self.rx_size - self.rx.offset()
        if n == 0 or self.closed:
            self.nothing(1)
            return memoryview(b"")
        self.viewed = True
        return PyMemoryView_FromMemory(<char *>self.rx_memory + self.rx.offset(), first if first < n else n, PyBUF_READ)

    cpdef object consume(self, Py_ssize_t n):
        """Release the first n bytes of view() to the peer as credit."""
        if n < 0 or n > self.rx.available():
            raise ValueError(f"consume({n}): {self.rx.available()} bytes are readable")
        self.viewed = False
        if n and not self.closed:
            self.receives += 1
            self.consumed(<uint32_t>n)

    cdef int consumed(self, uint32_t n) except -1:
        self.rx.consume(n)
        self.bytes_received += n
        if self.unread:
            self.judge_unread()
        if self.rx.update_due():
            self.announce(self.rx.peer_blocked)
            if self.grows and self.rx.peer_blocked and self.bytes_received - self.turned_at >= self.rx_size:
                # The writer waits, and what it waits for is read.
                self.turned_at = self.bytes_received
                self.owner.ring_turned()
        if self.failover.stage == LEFT and self.rx.available() == 0:
            self.finish()
        return 0

    # ---- cursor messages

    cdef bint is_quiet(self) noexcept:
        return self.failover.stage == ON_RDMA

    cdef int flush(self) except -1:
        cdef QueuePair qp = self.qp
        if not self.cursors.has_update():
            return 1
        if qp.failed:
            return 1
        if not qp.can_message():
            return 0
        self.post_cdc()
        return 1

    cdef int post_cdc(self) except -1:
        cdef QueuePair qp = self.qp
        cdef aio_chain chain
        cdef bint stopping = self.failover.stage != ON_RDMA
        if self.cursors.unannounced:
            self.data_at = qp.messages_sent + 1
        self.cursors.write(qp.message_room(), qp.cq.second)
        chain.length = 0
        # The last message is signalled: only when the peer's device has it may the TCP connection go (see link group).
        qp.add_message(&chain, CDC_BYTES, self.closed or stopping)
        self.last_posted = self.closed or stopping
        self.last_position = qp.sq_posted + chain.length
        if qp.held:
            qp.say_last(self.queued)
        qp.post(&chain)
        if stopping:
            self.quiesce()
        return 0

    cdef int on_cdc(self, const unsigned char *message, uint32_t length) except -1:
        cdef int changes
        cdef RingCursors cursors = self.cursors
        if self.tx is None or self.failover.stage >= QUIESCED:
            # It overtook the Confirm that travels on TCP; cursors are absolute, so the latest message is enough. Or the
            # stream is leaving RDMA, and TCP carries what it announces, unless the peer had come to its end on RDMA.
            self.early = message[:CDC_BYTES]
            self.mark_unread()
            return 0
        if not cursors.parse(message, length):
            if is_damaged(message):
                # The peer would wait for an answer to what it sent, and this end for what was lost.
                return self.qp.fail(RemoteProtocolError("a cursor message arrived damaged"))
            self.on_broken(RemoteProtocolError("the peer sent a malformed CDC message"))
            return 0
        changes = cursors.apply()
        cursors.active_at = self.qp.cq.second
        if changes & CHANGE_DATA:
            if self.told:
                self.rx.consume(self.rx.available())
            self.judge_unread()
        if changes & CHANGE_INVALID:
            self.on_broken(RemoteProtocolError(f"the peer broke the protocol: {cursors.cdc.fault_text()}"))
            self.abort_after_fault()
            return 0
        if changes & CHANGE_PEER_ABORTED and self.failure is None:
            self.failure = LinkError("the peer aborted the stream")
        if changes & (CHANGE_PEER_CLOSED | CHANGE_PEER_ABORTED) and not self.shut:
            # Nothing more can be sent: announce it, the peer waits for that to free its ring.
            self.shut_down(SENDING_DONE)
        elif changes & CHANGE_UPDATE_DUE:
            self.announce(self.rx.peer_blocked)
        if changes & (CHANGE_DATA | CHANGE_PEER_DONE | CHANGE_PEER_CLOSED | CHANGE_PEER_ABORTED):
            self.wake_readers()
        if changes & (CHANGE_CREDIT | CHANGE_PEER_CLOSED | CHANGE_PEER_ABORTED):
            if self._on_writable is not None and self.qp.cq.from_event:
                self.room_sleeps += 1
            self.wake_writers()
        if self.closed:
            self.finish_if_done()
        return 0

    cdef int need(self) except -1:
        if self.closed or self.failover.stage != ON_RDMA:
            return NEEDS_CALL
        # All that its task will look at: called without room it would come back in each turn of the loop.
        return NEEDS_RESERVATION if self.room() > 0 else NEEDS_MORE_ROOM

    cdef void count_reservation(self, int change) noexcept:
        self.qp.reservations += change
        if self.mirror != NULL:
            self.qp.cq.reserved_fragments += change

    cdef int on_room(self) except -1:
        self.wake_writers()
        if self.failover.stage != ON_RDMA:
            self.quiesce()
        if self.closed:
            self.finish_if_done()
        return 0

    cdef bint speaks_to(self, uint32_t token, uint64_t remote_addr) noexcept:
        if self.tx is None:
            return False
        if remote_addr:
            return self.tx_addr <= remote_addr < self.tx_addr + self.tx_size
        return self.cursors.cdc.peer_token == token
