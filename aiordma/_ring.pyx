# cython: language_level=3, boundscheck=False, wraparound=False
"""A byte stream over two SMC-style rings: station 2 of the path of a byte, and its end.

Each side owns a receive ring (RMB element) that the peer fills by RDMA WRITE. After writing, the sender tells its
producer cursor, and its consumer cursor for the other direction, in a 44-byte CDC message on the same QP, so
that the data is in place before the cursor is seen (RFC 7609 section 4; net/smc/smc_tx.c, smc_cdc.c).

When a CDC is sent: at once when nothing of ours is under way on the link (a lone message pays no delay) or a
fragment is full; otherwise at the end of the loop's tick, or before this side spins or parks, whichever is
first. So a burst of small sends costs one message, and nothing is ever held back for longer than a tick.

When the link breaks, or on demand, the stream leaves RDMA and goes on over its TCP connection from the exact byte
(carry.py drives it): this side stops sending (``leaving``), settles what it has posted, notes where the rings stand (``frozen``),
and, when both ends agree, hands everything behind the ring's rest to another pipe (``onward``). For that, sent bytes are
kept until they are certain to lie in the peer's ring. Where all goes through registered memory, the mirror holds them until
the room is reused. The software device copies inline WRITEs while they are posted, and counts those of which that is not true:
only these are kept (``kept``).

When the ring may be freed: after the peer has said that it will write no more (sending done, closed or aborted; RC keeps that
behind its last WRITE), or when the QP is gone. Freed earlier, the peer would write into somebody else's memory.
"""
from collections import deque
from typing import NamedTuple

from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy

from anyio import BrokenResourceError, ClosedResourceError

from ._cq cimport CompletionQueue, clock_ns
from ._qp cimport SQ_RESERVE, Connection, QueuePair
from ._verbs cimport aio_chain
from .proto.cdc cimport (
    CHANGE_CREDIT,
    CHANGE_DATA,
    CHANGE_INVALID,
    CHANGE_PEER_ABORTED,
    CHANGE_PEER_CLOSED,
    CHANGE_PEER_DONE,
    CHANGE_UPDATE_DUE,
    CdcConnection,
    CdcMessage,
    is_damaged,
)
from .proto.cursor cimport RxWindow, TxWindow

from .errors import Code, LinkError, NegotiationError, RemoteProtocolError

cdef enum:
    CDC_BYTES = 44
    CHAIN = 3               # most WRs that one step of a send posts
    BIG_RECEIVE = 32768     # from here on results come from the engine's spares
    # state flags (proto/cdc.py, StateFlag)
    SENDING_DONE = 0x80
    CLOSED = 0x40
    ABNORMAL_CLOSE = 0x20


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


cdef class RingPipe(Connection):
    """One connection on a link. Non-blocking; single-threaded, in the thread of the engine's loop.

    :param qp: the link it runs on.
    :param rx_addr, rx_size: our ring (registered with remote write), a power of two of bytes.
    :param fragment: most bytes of one WRITE and of one cursor step.
    :param own: what is given back by ``on_finished(pipe)``; kept here so that it lives as long as the rings are in use.
    """

    def __init__(self, QueuePair qp, *, uint64_t rx_addr, uint32_t rx_size,
                 uint32_t fragment=65536, object own=None):
        self.rx_memory = <unsigned char *><uintptr_t>rx_addr
        self.rx_size = rx_size
        self.rx = RxWindow(rx_size)
        self.incoming = CdcMessage()
        self.fragment = fragment
        self._own = own
        qp.register(self)

    def connect(self, *, uint32_t peer_token, uint64_t tx_addr, uint32_t tx_rkey, uint32_t tx_size) -> None:
        """The peer's half, from its Accept or Confirm."""
        self.tx_addr, self.tx_rkey, self.tx_size = tx_addr, tx_rkey, tx_size
        self.tx = TxWindow(tx_size)
        self.cdc = CdcConnection(self.tx, self.rx, peer_token)

        if self.early is not None:
            early, self.early = self.early, None
            self.on_cdc(<const unsigned char *>PyBytes_AS_STRING(early), CDC_BYTES)
        if self.failure is not None and self.qp.failed and not self.closed:
            # The link failed before there was anything to save; now the stream may go on elsewhere.
            reason, self.failure = self.failure, None
            self.on_broken(reason)

    def use_mirror(self, uint64_t addr, uint32_t lkey) -> None:
        """Registered memory as large as the peer's ring: the device does not take whole fragments inline."""
        self.mirror = <unsigned char *><uintptr_t>addr
        self.mirror_lkey = lkey

    def attach_tcp(self, carrier, bytes heard=b"") -> None:
        """Hand over the TCP connection that the stream began on: it stays open as liveness signal, and is closed at the end."""
        self._own.attach_tcp(carrier, heard)

    def forget(self) -> None:
        """The negotiation failed before the peer could use this pipe: unregister, say nothing."""
        self.shut = self.closed = self.finished = True
        self.qp.unregister(self)

    # ---- state

    @property
    def is_closed(self) -> bool:
        """This side has closed it."""
        return self.closed

    @property
    def is_finished(self) -> bool:
        """Closed, and nothing of it is in use any more."""
        return self.finished

    @property
    def token(self) -> int:
        return self.token

    @property
    def peer_token(self) -> int:
        """The peer's alert token."""
        return self.cdc.peer_token if self.cdc is not None else 0

    @property
    def path(self) -> str:
        """ "rdma", or "tcp" when the stream has left RDMA."""
        return "rdma" if self.onward is None else self.onward.path

    @property
    def fallback_reason(self):
        """Why the stream has left RDMA (FallbackReason), None while it has not."""
        return None if self.onward is None else self.onward.fallback_reason

    @property
    def error(self) -> BaseException | None:
        """Why the stream is broken, None while it is not."""
        if self.failure is None and self.onward is not None:
            return self.onward.error
        return self.failure

    @property
    def readable(self) -> int:
        """Bytes that can be received now."""
        cdef uint32_t n = self.rx.available()
        return n if n or self.onward is None else self.onward.readable

    @property
    def writable(self) -> int:
        """Bytes that can be sent now: the peer's ring has room, and the device for work requests."""
        if self.error is not None or self.shut or self.cdc is None:
            return 0
        return self.room() if self.onward is None else self.onward.writable

    cdef uint32_t room(self) noexcept:
        """Bytes the next step of a send may place. In the mirror, what is under way is the device's until it completes."""
        cdef uint32_t free = self.tx.free(), own
        if self.qp.sq_free() <= SQ_RESERVE + CHAIN or self.leaving:
            return 0
        if self.mirror != NULL:
            if self.mirror_busy:
                own = self.tx_size - <uint32_t>(self.tx.prod - self.mirror_free_to)
                if own < free:
                    free = own
            if not self.qp.cq.may_post_fragment():
                return 0
        return free

    @property
    def at_eof(self) -> bool:
        if self.rx.available() or self.peer_has(ABNORMAL_CLOSE):
            return False
        return self.peer_has(SENDING_DONE) or (self.onward is not None and self.onward.at_eof)

    @property
    def peer_done(self) -> bool:
        return self.peer_gone

    @property
    def peer_gone(self) -> bool:
        """The peer has said that it will write no more."""
        return self.peer_has(SENDING_DONE | ABNORMAL_CLOSE) or (self.onward is not None and self.onward.peer_done)

    @property
    def on_readable(self):
        return self._on_readable

    @on_readable.setter
    def on_readable(self, callback) -> None:
        self._on_readable = callback
        if self.onward is not None:
            self.onward.on_readable = callback
        elif callback is not None and self.failure is None:
            self.qp.cq.park()

    @property
    def on_writable(self):
        return self._on_writable

    @on_writable.setter
    def on_writable(self, callback) -> None:
        self._on_writable = callback
        if self.onward is not None:
            self.onward.on_writable = callback
        elif callback is not None and self.failure is None:
            self.qp.cq.park()

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
                break
            want = self.fragment if n - placed > self.fragment else <uint32_t>(n - placed)
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
                    self.untold >= self.fragment or qp.window.seq == qp.window.acked or (placed < n and self.tx.free() == 0)):
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

    cdef int keep(self, const unsigned char *data, uint32_t n) except -1:
        """The device has not carried these last n bytes out while they were posted: keep them until it has."""
        self.forget_kept()
        if self.kept is None:
            self.kept = deque()
        self.kept.append((self.qp.sq_posted, self.tx.prod - n, PyBytes_FromStringAndSize(<const char *>data, n)))
        return 0

    cdef int forget_kept(self) except -1:
        while self.kept and <int>(self.qp.sq_retired - <uint32_t>self.kept[0][0]) >= 0:
            self.kept.popleft()
        return 0

    # ---- receiving

    def try_receive(self, Py_ssize_t max_bytes):
        """Up to max_bytes as bytes; None when there is nothing now, b"" when the peer has finished sending.

        :raises ClosedResourceError: this side has closed the stream.
        :raises BrokenResourceError: the link broke or the peer aborted (after everything that arrived has been read).
        """
        cdef uint32_t n = self.rx.available(), offset
        cdef bytes out
        if n == 0 or self.closed or max_bytes < 1:
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
            if piece > self.fragment:
                piece = self.fragment
            if piece > n:
                piece = n
            memcpy(to, self.rx_memory + offset, piece)
            self.consumed(piece)
            to += piece
            n -= piece
        return 0

    def poll_receive(self, Py_ssize_t max_bytes):
        """try_receive(), after polling for as long as the policy allows when there is nothing yet: one call for the
        way of a round trip, on which every hundred nanoseconds count."""
        if self.rx.available() == 0 and not self._spin(True):
            return None if max_bytes > 0 else self._nothing(max_bytes)
        return self.try_receive(max_bytes)

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

    # ---- cursor messages

    cdef void build_cdc(self):
        self.cdc.write(self.qp.message_room())
        self.untold = 0
        self.tell = False
        self.cdcs_sent += 1

    cdef int tell_peer(self, bint now) except -1:
        """Send a CDC, now if the link has credit and nobody waits in line, else in turn."""
        self.tell = True
        if self.leaving and (self.last_told or self.frozen):
            return 0
        if now and not self.queued and not self.qp.failed and self.qp.can_message():
            return self.flush()
        self.qp.enqueue(self)
        return 0

    cdef int flush(self) except -1:
        cdef QueuePair qp = self.qp
        if not (self.tell or self.untold):
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
        self.build_cdc()
        chain.length = 0
        # The last message is signalled: only when the peer's device has it may the TCP connection go (see link group).
        qp.add_message(&chain, CDC_BYTES, self.closed or self.leaving)
        self.last_told = self.closed or self.leaving
        self.closing_position = qp.sq_posted + chain.length
        qp.post(&chain)
        if self.leaving:
            self.settle()
        return 0

    cdef int on_cdc(self, const unsigned char *message, uint32_t length) except -1:
        cdef int news
        if self.tx is None:
            # It overtook the Confirm that travels on TCP. Cursors are absolute, so the latest message is enough.
            self.early = message[:CDC_BYTES]
            return 0
        if self.frozen:
            # What it tells is told on TCP, unless the peer had come to its end already and does not speak there.
            self.early = message[:CDC_BYTES]
            return 0
        if self.incoming.parse(message, length) < 0:
            if is_damaged(message):
                # Not the peer's word: it would wait for an answer to what it said, and this end for what it did not hear.
                return self.qp.fail(RemoteProtocolError("a cursor message arrived damaged"))
            self.on_broken(RemoteProtocolError("the peer sent a malformed CDC message"))
            return 0
        news = self.cdc.receive(self.incoming)
        self.cdcs_received += 1
        if news & CHANGE_INVALID:
            self.on_broken(RemoteProtocolError(f"the peer broke the protocol: {self.cdc.fault_text()}"))
            self.abort_after_fault()
            return 0
        if news & CHANGE_DATA and self.rx.available() > self.rx_high_water:
            self.rx_high_water = self.rx.available()
        if news & CHANGE_PEER_ABORTED and self.failure is None:
            self.failure = LinkError("the peer aborted the stream")
        if news & (CHANGE_PEER_CLOSED | CHANGE_PEER_ABORTED) and not self.shut:
            # We can send no more: say so, the peer waits for it to free its ring.
            self.shut_down(SENDING_DONE)
        elif news & CHANGE_UPDATE_DUE:
            self.tell_peer(self.rx.peer_blocked)
        if news & (CHANGE_DATA | CHANGE_PEER_DONE | CHANGE_PEER_CLOSED | CHANGE_PEER_ABORTED):
            self.wake_readers()
        if news & (CHANGE_CREDIT | CHANGE_PEER_CLOSED | CHANGE_PEER_ABORTED):
            self.wake_writers()
        if self.closed:
            self.finish_if_done()
        return 0

    cdef int on_room(self) except -1:
        self.wake_writers()
        if self.leaving:
            self.settle()
        if self.closed:
            self.finish_if_done()
        return 0

    cdef void wake_readers(self):
        if self._on_readable is not None:
            self.qp.cq.wakes += 1
            self._on_readable()

    cdef void wake_writers(self):
        if self._on_writable is not None:
            self.qp.cq.wakes += 1
            self._on_writable()

    cdef bint speaks_to(self, uint32_t token, uint64_t remote_addr) noexcept:
        if self.cdc is None:
            return False
        if remote_addr:
            return self.tx_addr <= remote_addr < self.tx_addr + self.tx_size
        return self.cdc.peer_token == token

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
        cdef CompletionQueue cq = self.qp.cq
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

    # ---- begun with a ticket (tickets.py)

    def greet(self) -> None:
        """Say at once that this end takes part."""
        self.tell_peer(True)

    def stand_alone(self) -> None:
        """The peer has never taken part, and never will: there is nobody to wait for at the end."""
        self.alone = True
        self.finish_if_done()

    # ---- end

    def send_eof(self) -> None:
        """Half-close: everything placed so far is followed by EOF at the peer."""
        if self.shut or self.failure is not None or self.cdc is None:
            return
        self.eof_sent = True
        self.shut_down(SENDING_DONE)
        if self.onward is not None:
            self.onward.send_eof()

    def close(self) -> None:
        """Close both directions. What was placed still arrives; what the peer sends from now on is dropped.
        The rings are given back (``on_finished``) when the peer has said that it writes no more."""
        self._close(False)

    def abort(self) -> None:
        """Close at once; the peer gets an error instead of EOF."""
        self._close(True)

    def _close(self, bint abnormal) -> None:
        if self.closed:
            return
        self.closed = True
        self._on_readable = self._on_writable = None
        if self.cdc is None and self.failure is None:
            self.failure = LinkError("closed before the connection was confirmed")
        if self.onward is not None:
            self.shut = True
            if abnormal:
                self.onward.abort()
            else:
                self.onward.close()
            self.end_on_link()
            return
        if abnormal and self.leaving:
            self.leaving = self.frozen = False
            self._own.stop_carrying()
        if self.cdc is not None:
            self.shut_down(SENDING_DONE | CLOSED | (ABNORMAL_CLOSE if abnormal or self.failure is not None else 0))
        self.shut = True
        self.finish_if_done()

    cdef int shut_down(self, unsigned int flags) except -1:
        """Say the flags to the peer; no data follows."""
        self.shut = True
        if self.cdc.set_local_state(flags):
            self.tell_peer(True)
        return 0

    cdef bint peer_has(self, unsigned int flags) noexcept:
        return self.cdc is not None and (self.cdc.peer_state & flags) != 0

    cdef int abort_after_fault(self) except -1:
        """The peer broke the protocol: nothing of it is believed any more, but it shall know that this is over."""
        self.shut = True
        if self.cdc.set_local_state(SENDING_DONE | ABNORMAL_CLOSE):
            self.tell_peer(True)
        return 0

    cdef int on_broken(self, object reason) except -1:
        if self.posting:
            self.late_reason = reason       # after place() has noted what it was posting
            return 0
        if self.finished or self.onward is not None:
            return 0
        if self.leaving:
            return self.settle()
        if self.may_leave() and not self.peer_has(CLOSED) and self._own is not None and self._own.carry_on(reason):
            return 0
        if self.failure is None:
            self.failure = reason
        self.wake_readers()
        self.wake_writers()
        self.finish_if_done()
        return 0

    def break_with(self, reason: BaseException) -> None:
        """Fail this connection alone (its TCP connection was lost, or both ends could not agree to go on there)."""
        if self.finished or self.onward is not None:
            return
        if self.leaving:
            self.leaving = self.frozen = False
            if self.early is not None:
                early, self.early = self.early, None
                self.on_cdc(<const unsigned char *>PyBytes_AS_STRING(early), CDC_BYTES)
            if self.closed and not self.qp.failed:
                self.shut_down(SENDING_DONE | CLOSED | ABNORMAL_CLOSE)
        if self.failure is None and (self.qp.failed or not self.peer_gone):
            self.failure = reason
        self.wake_readers()
        self.wake_writers()
        self.finish_if_done()

    # ---- leaving RDMA (carry.py)

    cdef bint may_leave(self):
        return (self.failure is None and self.cdc is not None and not self.finished and not self.peer_has(ABNORMAL_CLOSE)
                and not self.cdc.local_state & ABNORMAL_CLOSE)

    @property
    def can_leave(self) -> bool:
        """The stream is whole, so that another path can take it over."""
        return self.may_leave() and self.onward is None

    def come_back(self):
        """Have the stream come back to RDMA. :raises NegotiationError: it is not on TCP, or over."""
        self.shorten()
        if self.onward is None:
            raise NegotiationError(Code.OUT_OF_SYNC, "the stream is on RDMA")
        return self.onward.come_back()

    @property
    def target(self):
        """The pipe that does all the work, when this one does nothing any more but call it; else None."""
        return self.onward if self.finished else None

    @property
    def own_counters(self) -> tuple[int, int]:
        """Bytes sent and received by this pipe, without those of its successors."""
        return self.bytes_sent, self.bytes_received

    @property
    def counters(self) -> tuple[int, int]:
        """Bytes sent and received, here and by what has taken over."""
        beside = (0, 0) if self.onward is None else self.onward.counters
        return self.bytes_sent + beside[0], self.bytes_received + beside[1]

    cdef int shorten(self) except -1:
        """A stream may go to and fro often: leave out of the chain what only passes on."""
        while self.onward is not None and self.onward.target is not None:
            sent, received = self.onward.own_counters
            self.bytes_sent += sent
            self.bytes_received += received
            self.onward = self.onward.target
        return 0

    def leave(self, code, str text="") -> bool:
        """Have the stream leave RDMA and go on over its TCP connection; whether that has begun."""
        self.shorten()
        if self.onward is not None:
            return self.onward.leave(code, text)
        return self._own is not None and self._own.leave(code, text)

    def stop_sending(self) -> None:
        """Send no more by RDMA. When all that was posted has completed, or the link has failed, ``own.settled()`` is called,
        perhaps at once."""
        if self.frozen:
            self._own.settled()
            return
        self.leaving = True
        self.last_told = False
        if not self.qp.failed:
            self.tell_peer(True)
        else:
            self.settle()

    cdef int settle(self) except -1:
        if self.frozen:
            return 0
        if not self.qp.failed:
            if not self.last_told:
                return 0                        # in line for credit
            if not self.last_message_delivered:
                self.qp.wait_for_room(self)     # its completion brings us back through on_room()
                return 0
        self.frozen = True
        self._own.settled()
        return 0

    def ledger(self) -> tuple[int, int, int, int, int, int, int, int]:
        """Where the rings stand, in the order of ``proto.carry.Ledger``."""
        cdef uint64_t placed = self.tx.prod
        self.forget_kept()
        if self.kept:
            placed = self.kept[0][1]
        elif self.mirror != NULL and self.qp.failed:
            placed = self.tx.cons       # nobody knows which of the WRITEs arrived, but the mirror has them all
        return (self.tx.prod, placed, self.tx.cons, self.rx.prod, self.rx.told, self.rx_size, self.cdc.local_state & 0xc0,
                self.cdc.peer_state & 0xc0)

    def unplaced(self, uint64_t start) -> bytes:
        """The sent bytes from ``start`` on, which is not before what the ledger says is placed."""
        cdef uint32_t n = <uint32_t>(self.tx.prod - start), offset, first
        if n == 0:
            return b""
        if self.mirror != NULL:
            offset = <uint32_t>(start & (self.tx_size - 1))
            first = self.tx_size - offset
            if first > n:
                first = n
            return (self.mirror + offset)[:first] + self.mirror[:n - first]
        held = b"".join([piece for _, _, piece in self.kept])
        return held[start - <uint64_t>self.kept[0][1]:]

    def go_on(self, onward, uint64_t read_until, bint peer_closed) -> None:
        """The stream leaves RDMA: what is in the ring up to ``read_until`` is read first, all else goes through ``onward``."""
        self.rx.prod = read_until
        self.onward = onward
        self.kept = self.early = None
        self.shut = self.shut or peer_closed
        self.qp.unregister(self)
        if self.closed:
            onward.close()
        else:
            if self.eof_sent:
                onward.send_eof()
            onward.on_readable, onward.on_writable = self._on_readable, self._on_writable
        self.wake_readers()
        self.wake_writers()
        if self.closed or self.rx.available() == 0:
            self.end_on_link()

    cdef int end_on_link(self) except -1:
        """Nothing of the rings is used any more."""
        if not self.finished:
            self.finished = True
            if self.on_finished is not None:
                self.on_finished(self)
        return 0

    @property
    def last_message_delivered(self) -> bool:
        """The peer's device has acknowledged our closing message."""
        return self.last_told and <int>(self.qp.sq_retired - self.closing_position) >= 0

    cdef int finish_if_done(self) except -1:
        if self.finished or not self.closed or self.leaving:
            return 0
        if not self.qp.failed and self.cdc is not None:
            if not self.peer_gone and not self.alone:
                return 0
            if not self.qp.failed and not self.last_message_delivered:
                self.qp.wait_for_room(self)     # its completion brings us back through on_room()
                return 0
        self.finished = True
        self.qp.unregister(self)
        if self.on_finished is not None:
            self.on_finished(self)
        return 0
