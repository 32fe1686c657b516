# cython: language_level=3, boundscheck=False, wraparound=False
"""Both cursors of a stream over rings: how far each is, how the ends tell each other, and how it all ends.

When a CDC is sent: at once when nothing of ours is under way on the link (a lone message pays no delay) or a
step is full; otherwise at the end of the loop's tick, or before this side spins or parks, whichever is
first. So a burst of small sends costs one message, and nothing is ever held back for longer than a tick.

When the ring may be freed: after the peer has said that it will write no more (sending done, closed or aborted; RC keeps that
behind its last WRITE), or when the QP is gone. Freed earlier, the peer would write into somebody else's memory.
"""
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from ..datapath._qp cimport SQ_RESERVE, Flow, QueuePair
from ..datapath._fairness cimport NEEDS_CALL, NEEDS_MORE_ROOM, NEEDS_RESERVATION
from ..datapath._verbs cimport aio_chain
from ..proto.cdc cimport (
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
from ..proto.cursor cimport RxWindow, TxWindow

from ..errors import LinkError, RemoteProtocolError

cdef enum:
    CDC_BYTES = 44
    CHAIN = 3               # most WRs that one step of a send posts


cdef class RingBase(Flow):
    def __init__(self, QueuePair qp, *, uint64_t rx_addr, uint32_t rx_size,
                 uint32_t fragment=65536, object own=None):
        self.rx_memory = <unsigned char *><uintptr_t>rx_addr
        self.rx_size = rx_size
        self.rx = RxWindow(rx_size)
        self.incoming = CdcMessage()
        self.step = self.fragment = fragment
        self.give_back = max(fragment, rx_size >> 2)
        self._own = own
        qp.register(self)

    def connect(self, *, uint32_t peer_token, uint64_t tx_addr, uint32_t tx_rkey, uint32_t tx_size) -> None:
        """The peer's half, from its Accept or Confirm."""
        self.tx_addr, self.tx_rkey, self.tx_size = tx_addr, tx_rkey, tx_size
        self.tx = TxWindow(tx_size)
        if self.mirror == NULL:
            self.step = max(self.fragment, min(tx_size >> 2, self.qp.max_inline))
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
        if self.qp.sq_free() <= SQ_RESERVE + CHAIN * (1 + self.qp.reservations - self.reserved) or self.leaving:
            return 0
        if self.mirror != NULL:
            if self.mirror_busy:
                own = self.tx_size - <uint32_t>(self.tx.prod - self.mirror_free_to)
                if own < free:
                    free = own
            if not self.qp.cq.may_post_fragment(self.reserved):
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

    cdef int need(self) except -1:
        if self.closed or self.leaving:
            return NEEDS_CALL
        # All that its task will look at: called without room it would come back in each turn of the loop, and never sleep.
        return NEEDS_RESERVATION if self.room() > 0 else NEEDS_MORE_ROOM

    cdef void count_reservation(self, int change) noexcept:
        self.qp.reservations += change
        if self.mirror != NULL:
            self.qp.cq.reserved_fragments += change

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

    # ---- leaving RDMA is of _ringleave.pyx

    cdef bint may_leave(self):
        raise NotImplementedError

    cdef int settle(self) except -1:
        raise NotImplementedError
