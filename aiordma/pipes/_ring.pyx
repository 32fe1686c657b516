# cython: language_level=3, boundscheck=False, wraparound=False
"""A byte pipe over two SMC-style rings: station 2 of the path of a byte, and its end.

Each side owns a receive ring (RMB element) that the peer fills by RDMA WRITE. After writing, the sender announces its
producer cursor, and its consumer cursor for the other direction, in a 44-byte CDC message on the same QP, so
that the data is in place before the cursor is seen (RFC 7609 section 4; net/smc/smc_tx.c, smc_cdc.c).

When a CDC is sent: at once for the first writes of a turn of the loop (comes_first()), when nothing of ours is under way
on the link, or when a step is full; otherwise at the end of the loop's tick, or before this side polls or parks, whichever
is first. For a loop that is blocked, a thread sends it (datapath/_late.pyx). So a burst of small sends costs few messages,
and nothing is held back for longer than a tick or some milliseconds.

When the ring may be freed: after the peer has announced that it writes no more (sending done, closed or aborted; RC
keeps that behind its last WRITE), or when the QP is gone. Freed earlier, the peer would write into memory of another
connection.

A ring pipe is made of parts: the cursors (_ring_cursors.pyx) and what it needs to leave RDMA (_ring_failover.pyx).
Users hold it inside a SwitchablePipe (_switchable.pyx); polling is in _ring_polling.pyx, and the replacement of a ring by
one of another size in _ring_resize.pyx.
"""
cimport cython
from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from ..plain cimport check_plain
from ..datapath._fairness cimport NEEDS_CALL, NEEDS_MORE_ROOM, NEEDS_RESERVATION
from ..datapath._qp cimport SQ_RESERVE, Flow, QueuePair
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
from ..verbs._copy cimport aio_copy, bytes_of
from ._ring_cursors cimport ABNORMAL_CLOSE, CDC_BYTES, CLOSED, SENDING_DONE, RingCursors
from ._ring_failover cimport LEFT, ON_RDMA, QUIESCED, STOPPING, RingFailover

from typing import NamedTuple

from anyio import BrokenResourceError, ClosedResourceError

from ..errors import LinkError, RemoteProtocolError

cdef enum:
    FIRSTS = 3              # writes of one turn that are announced at once
    CHAIN = 3               # most WRs that one step of a send posts
    BIG_RECEIVE = 32768     # from here on results come from the engine's pool


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


@cython.final
cdef class RingPipe(Flow):
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
        self.failover.mirror_size = tx_size
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

    def forget(self) -> None:
        """The negotiation failed before the peer could use this pipe: unregister without a message."""
        self.shut = self.closed = self.finished = True
        self.forget_unread()
        self.qp.unregister(self)

    # ---- state

    @property
    def is_closed(self) -> bool:
        """This side has closed it."""
        return self.closed

    @property
    def is_finished(self) -> bool:
        """It is over, and nothing of it is in use any more."""
        return self.finished

    @property
    def token(self) -> int:
        """Our alert token."""
        return self.token

    @property
    def peer_token(self) -> int:
        """The peer's alert token."""
        return self.cursors.cdc.peer_token if self.cursors.cdc is not None else 0

    @property
    def error(self) -> BaseException | None:
        """Why the rings cannot be used any more, None while they can."""
        return self.failure

    @property
    def readable(self) -> int:
        """Bytes that can be received now."""
        return self.rx.available()

    @property
    def writable(self) -> int:
        """Bytes that can be sent now: the peer's ring has room, and the device for work requests."""
        return 0 if self.failure is not None or self.shut or self.tx is None else self.room()

    @property
    def at_eof(self) -> bool:
        """The peer has finished sending, and everything was received."""
        if self.rx.available() or self.cursors.peer_has(ABNORMAL_CLOSE):
            return False
        return self.cursors.peer_has(SENDING_DONE)

    @property
    def peer_gone(self) -> bool:
        """The peer has announced that it writes no more."""
        return self.cursors.peer_has(SENDING_DONE | ABNORMAL_CLOSE)

    @property
    def link_failed(self) -> bool:
        """The rings carry nothing any more, whatever that means for the stream."""
        return self.qp.failed

    @property
    def drained(self) -> bool:
        """The stream has left these rings, and all that was received by them has been read."""
        return self.failover.stage == LEFT and self.rx.available() == 0 and not self.cursors.peer_has(SENDING_DONE)

    @property
    def position(self):
        """Where the rings stand (a ``RingPosition``); None until connect()."""
        return self.cursors.position()

    @property
    def counters(self) -> tuple[int, int]:
        """Bytes sent and received."""
        return self.bytes_sent, self.bytes_received

    @property
    def blocked_ns(self) -> int:
        """For so long the last send has found no room, and the peer has read nothing; 0: neither is so."""
        cdef TxWindow tx = self.tx
        if not self.waits or not tx.blocked or self.blocked_cons != tx.cons:
            return 0
        return self.qp.cq.clock.ns() - self.blocked_at

    def statistics(self) -> PipeStatistics:
        """What happened so far."""
        cursors = self.cursors
        return PipeStatistics(
            self.sends, self.receives, self.bytes_sent, self.bytes_received, cursors.sent, cursors.received,
            self.times_blocked, cursors.high_water, self.rx_size, self.tx_size if self.failover.stage != LEFT else 0)

    @property
    def on_readable(self):
        """Called when data, the end or an error has come."""
        return self._on_readable

    @on_readable.setter
    def on_readable(self, callback) -> None:
        self._on_readable = callback
        if callback is not None and self.failure is None and self.failover.stage != LEFT:
            self.qp.cq.park()

    @property
    def on_writable(self):
        """Called when there is room again, or on an error."""
        return self._on_writable

    @on_writable.setter
    def on_writable(self, callback) -> None:
        self._on_writable = callback
        if callback is not None and self.failure is None and self.failover.stage != LEFT:
            self.qp.cq.park()

    cdef void wake_readers(self):
        if self._on_readable is not None:
            self.qp.cq.wakes += 1
            if self.pushes:
                self.qp.cq.served()
                if self.qp.cq.dispatching:
                    self.qp.cq.call_after_batch(self)
                    return
            self.call(self._on_readable)

    cdef int end_of_batch(self) except -1:
        if self._on_readable is not None:
            self.call(self._on_readable)
        return 0

    cdef void wake_writers(self):
        if self._on_writable is not None:
            self.qp.cq.wakes += 1
            self.call(self._on_writable)

    cdef int call(self, callback) except -1:
        """Call what may be code of the program, in the midst of a completion."""
        try:
            callback()
        except BaseException as error:
            self.qp.cq.report(error)
        return 0

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
                    qp.say_last(self)
            self.posting = True
            if lkey != 0:
                self.post_copied(&chain, want)
                lkey = 0
            else:
                qp.post(&chain)
            self.posting = False
            if self.reserved:
                qp.cq.fair_queue.end_reservation(self)
            if self.mirror == NULL:
                self.keep_unfinished(data + placed - want, want)
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

    cdef int keep_unfinished(self, const unsigned char *data, uint32_t want) except -1:
        """Keep the last ``want`` bytes if the device did not carry them out while they were posted."""
        cdef QueuePair qp = self.qp
        if qp.astray[0] != qp.astray_seen or qp.failed or qp.refused or qp.hook is not None:
            qp.astray_seen = qp.astray[0]
            self.failover.release(qp.sq_retired)
            self.failover.keep(qp.sq_posted, self.tx.prod - want, data, want)
        elif self.failover.kept is not None:
            self.failover.kept = None       # this WRITE is done, and so are those before it
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
            self.qp.enqueue(self)
            if cursors.unannounced:
                self.leave_will()
            self.qp.cq.flush_if_late()
        return 0

    cdef void leave_will(self) noexcept:
        """What was placed is announced later: as this process may be killed before, the peer's device has the message
        already."""
        cdef unsigned char message[CDC_BYTES]
        if self.qp.may_will(self) and self.failover.stage == ON_RDMA:
            self.cursors.cdc.foretell(message)
            self.qp.will(message, CDC_BYTES)

    cdef bint mark_blocked(self) noexcept:
        """A send waits for room; whether the peer must be told so."""
        cdef TxWindow tx = self.tx
        if not self.waits or self.blocked_cons != tx.cons:
            self.waits, self.blocked_cons, self.blocked_at = True, tx.cons, self.qp.cq.clock.ns()
        return tx.mark_blocked()

    cdef uint32_t room(self) noexcept:
        """Bytes the next step of a send may put there. What is under way in the mirror is the device's."""
        cdef uint32_t free = self.tx.free(), own
        cdef QueuePair qp = self.qp
        if qp.sq_free() <= SQ_RESERVE + CHAIN * (1 + qp.reservations - self.reserved) or self.failover.stage != ON_RDMA:
            return 0
        if self.paused:
            return 0
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

    cdef object nothing(self, Py_ssize_t max_bytes):
        """What an operation results in that can take no data: None or b"", or it raises."""
        if self.closed:
            raise ClosedResourceError("this end was closed, or has finished sending")
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, not {max_bytes}")
        if not self.cursors.peer_has(SENDING_DONE | ABNORMAL_CLOSE):
            if self.failure is None:
                return None
            raise BrokenResourceError(f"the connection is lost: {self.failure}") from self.failure
        if self.cursors.peer_has(ABNORMAL_CLOSE):
            raise BrokenResourceError(f"the connection is lost: {self.failure}") from self.failure
        return b"" if self.rx.available() == 0 else None

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

    cdef void mark_unread(self) noexcept:
        if not self.unread and not self.closed:
            self.unread = True
            self.qp.unread += 1

    cdef void judge_unread(self) noexcept:
        """Bytes have come, or were read, or another number of them counts as read."""
        if self.rx.available() > self.reads_ahead:
            self.mark_unread()
        else:
            self.forget_unread()
            if self.qp.unread == 0:
                self.qp.note_read()

    def read_ahead(self, uint32_t n) -> None:
        """So many bytes count as read as soon as they have come: on TCP, the user would have taken them by then."""
        self.reads_ahead = n
        if self.unread:
            self.judge_unread()

    cdef void forget_unread(self) noexcept:
        if self.unread:
            self.unread = False
            self.qp.unread -= 1

    # ---- cursor messages

    cdef int announce(self, bint now) except -1:
        """Send a CDC, now if the link has credit and no other flow waits, else in turn."""
        self.cursors.update_wanted = True
        if self.failover.stage != ON_RDMA and (self.last_posted or self.failover.stage >= QUIESCED):
            return 0
        if now and not self.queued and not self.qp.failed and self.qp.can_message():
            return self.flush()
        self.qp.enqueue(self)
        return 0

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
            qp.say_last(self)
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

    cdef int take_early(self) except -1:
        if self.early is not None:
            early, self.early = self.early, None
            self.on_cdc(<const unsigned char *>PyBytes_AS_STRING(early), CDC_BYTES)
            if self.early is None and self.rx.available() == 0:
                self.forget_unread()
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

    # ---- opened with a ticket

    def greet(self) -> None:
        """Announce at once that this end takes part."""
        self.announce(True)

    def stand_alone(self) -> None:
        """The peer has never taken part, and never will: nothing is waited for at the end."""
        self.alone = True
        self.finish_if_done()

    # ---- end

    def send_eof(self) -> None:
        """Half-close: everything placed so far is followed by EOF at the peer."""
        if self.shut or self.failure is not None or self.tx is None:
            return
        self.eof_sent = True
        self.shut_down(SENDING_DONE)

    def close(self) -> None:
        """Close both directions. What was placed still arrives; what the peer sends from now on is dropped.
        The rings are released (``on_finished``) when the peer has announced that it writes no more."""
        self.close_with(False)

    def abort(self) -> None:
        """Close at once; the peer gets an error instead of EOF."""
        self.close_with(True)

    cdef int close_with(self, bint abnormal) except -1:
        cdef bint leaving = self.failover.stage == STOPPING or self.failover.stage == QUIESCED
        if self.closed and not (abnormal and leaving):
            return 0
        self.closed = True
        self.forget_unread()
        self._on_readable = self._on_writable = None
        if self.tx is None and self.failure is None:
            self.failure = LinkError("closed before the connection was confirmed")
        if self.failover.stage == LEFT:
            self.shut = True
            return self.finish()
        if abnormal and leaving:
            self.owner.cancel_failover()
            self.stay()
        if self.tx is not None:
            self.shut_down(SENDING_DONE | CLOSED | (ABNORMAL_CLOSE if abnormal or self.failure is not None else 0))
        self.shut = True
        return self.finish_if_done()

    cdef int shut_down(self, unsigned int flags) except -1:
        """Announce the flags to the peer; no data follows."""
        self.shut = True
        if self.cursors.set_local(flags):
            self.announce(True)
        return 0

    cdef int abort_after_fault(self) except -1:
        """The peer broke the protocol: it is not believed any more, but it must be told that the stream is over."""
        return self.shut_down(SENDING_DONE | ABNORMAL_CLOSE)

    cdef int on_broken(self, object reason) except -1:
        if self.posting:
            self.late_reason = reason       # after put_bytes() has noted what it was posting
            return 0
        if self.finished or self.failover.stage == LEFT:
            return 0
        if self.qp.left_whole and self.failover.stage == ON_RDMA and self.ended_whole():
            self.end_for_peer()
            return self.finish_if_done()
        if self.failover.stage != ON_RDMA:
            return self.quiesce()
        if self.may_leave() and not self.cursors.peer_has(CLOSED) and self.owner is not None:
            if self.owner.fail_over(reason):
                return 0
        if self.failure is None:
            self.failure = reason
        self.wake_readers()
        self.wake_writers()
        return self.finish_if_done()

    cdef bint ended_whole(self) noexcept:
        """Whether a peer whose process has ended, with nothing held back on the link, has left this stream as the kernel
        would end a TCP connection in order: it had no more to send, and has read what this end sent. It may not have
        told that: then it has left the number of messages behind which it had read everything."""
        cdef RxWindow rx = self.rx
        if self.failure is not None or self.tx is None or self.cursors.peer_has(ABNORMAL_CLOSE):
            return False
        if rx.peer_blocked or rx.prod == rx.told + self.rx_size:
            return False        # a writer waited for room, or may have
        if self.tx.prod == self.tx.cons:
            return True
        return self.cursors.unannounced == 0 and 0 < self.data_at <= self.qp.left_note

    cdef int end_for_peer(self) except -1:
        self.cursors.cdc.peer_state |= SENDING_DONE | CLOSED
        self.shut = True
        self.wake_readers()
        self.wake_writers()
        return 0

    def break_with(self, reason: BaseException) -> None:
        """Fail this stream alone (its TCP connection was lost, or the ends could not agree to fail over to it)."""
        if self.finished or self.failover.stage == LEFT:
            return
        # Once this end has said where its rings stand, the peer may have left them, and freed its own.
        cdef bint said = self.failover.stage == QUIESCED
        if self.failover.stage != ON_RDMA:
            self.stay()
            if self.closed and not self.qp.failed:
                self.shut_down(SENDING_DONE | CLOSED | ABNORMAL_CLOSE)
            self.take_early()
        said = said and not self.cursors.peer_has(CLOSED)
        if self.failure is None and (said or self.qp.failed or not self.peer_gone):
            self.failure = reason
        self.wake_readers()
        self.wake_writers()
        self.finish_if_done()

    cdef int stay(self) except -1:
        """The stream does not leave after all: say what was not said since the message that was to be the last."""
        self.failover.stage = ON_RDMA
        self.last_posted = False
        if not self.qp.failed and self.cursors.local_has(SENDING_DONE | CLOSED | ABNORMAL_CLOSE):
            self.announce(True)
        return 0

    cdef bint last_delivered(self) noexcept:
        """The peer's device has acknowledged our last message."""
        return self.last_posted and <int>(self.qp.sq_retired - self.last_position) >= 0

    cdef int finish_if_done(self) except -1:
        if self.finished or not self.closed or self.failover.stage != ON_RDMA:
            return 0
        if not self.qp.failed and self.tx is not None:
            if not self.peer_gone and not self.alone:
                return 0
            if not self.last_delivered():
                self.qp.wait_for_room(self)     # its completion calls on_room()
                return 0
        self.qp.unregister(self)
        return self.finish()

    cdef int finish(self) except -1:
        """The rings are not used any more."""
        if not self.finished:
            self.finished = True
            self.grows = False
            on_finished = self.on_finished
            # Each refers to the other: the cycles of ten thousand streams that end together would stay until the
            # garbage collector comes, and that may be hours on a loop that is idle then.
            self.owner = self.on_finished = None
            if on_finished is not None:
                on_finished(self)
        return 0

    # ---- leaving RDMA (links/failover directs it)

    cdef bint may_leave(self) noexcept:
        return (self.failure is None and self.tx is not None and not self.finished and self.failover.stage != LEFT
                and not self.cursors.peer_has(ABNORMAL_CLOSE) and not self.cursors.local_has(ABNORMAL_CLOSE))

    @property
    def can_leave(self) -> bool:
        """The stream is whole, so that another transport can carry it on."""
        return self.may_leave()

    @property
    def has_left(self) -> bool:
        """Another transport carries the stream on."""
        return self.failover.stage == LEFT

    def stop_sending(self) -> None:
        """Send no more by RDMA. When all that was posted has completed, or the link has failed, ``owner.quiesced()`` is
        called, perhaps at once."""
        if self.failover.stage >= QUIESCED:
            self.owner.quiesced()
            return
        self.failover.stage = STOPPING
        self.last_posted = False
        if not self.qp.failed:
            self.announce(True)
        else:
            self.quiesce()

    cdef int quiesce(self) except -1:
        if self.failover.stage >= QUIESCED:
            return 0
        if not self.qp.failed:
            if not self.last_posted:
                return 0                        # it waits for credit
            if not self.last_delivered():
                self.qp.wait_for_room(self)     # its completion calls on_room()
                return 0
        self.failover.stage = QUIESCED
        self.owner.quiesced()
        return 0

    def ledger(self) -> tuple[int, int, int, int, int, int, int, int]:
        """Where the rings stand, in the order of ``proto.failover.Ledger``."""
        return self.failover.ledger(self.cursors, self.qp.sq_retired, self.qp.failed)

    def unplaced(self, uint64_t start) -> bytes:
        """The sent bytes from ``start`` on, which is not before what the ledger calls placed."""
        return self.failover.unplaced(self.cursors, start)

    def leave(self, uint64_t read_until) -> None:
        """The stream leaves these rings: what is there up to byte ``read_until`` is still read, and nothing is sent."""
        self.rx.prod = read_until
        self.failover.stage = LEFT
        self.failover.kept = self.early = None
        self.forget_unread()
        self.qp.unregister(self)
        if self.closed or self.rx.available() == 0:
            self.finish()
