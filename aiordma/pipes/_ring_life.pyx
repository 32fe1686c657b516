# cython: language_level=3, boundscheck=False, wraparound=False
"""What a ring pipe is beside the bytes that it moves: its state, whom it wakes, how it ends, and how it leaves RDMA.

When the ring may be freed: after the peer has announced that it writes no more (sending done, closed or aborted; RC
keeps that behind its last WRITE), or when the QP is gone. Freed earlier, the peer would write into memory of another
connection.
"""
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint32_t, uint64_t

from ..datapath._qp cimport Flow
from ..proto.cursor cimport RxWindow, TxWindow
from ._ring_cursors cimport ABNORMAL_CLOSE, CDC_BYTES, CLOSED, SENDING_DONE
from ._ring_failover cimport LEFT, ON_RDMA, QUIESCED, STOPPING

from typing import NamedTuple

from anyio import BrokenResourceError, ClosedResourceError

from ..errors import LinkError


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


cdef class RingLife(Flow):
    """Base of :class:`RingPipe`, which moves the bytes and the cursors."""

    # ---- state

    @property
    def token(self) -> int:
        """Our alert token."""
        return self.token

    @property
    def peer_token(self) -> int:
        """The peer's alert token."""
        return self.cursors.cdc.peer_token if self.cursors.cdc is not None else 0

    @property
    def is_closed(self) -> bool:
        """This side has closed it."""
        return self.closed

    @property
    def is_finished(self) -> bool:
        """It is over, and nothing of it is in use any more."""
        return self.finished

    @property
    def error(self) -> BaseException | None:
        """Why the rings cannot be used any more, None while they can."""
        return self.failure

    @property
    def readable(self) -> int:
        """Bytes that can be received now."""
        return self.rx.available()

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

    def statistics(self) -> PipeStatistics:
        """What happened so far."""
        cursors = self.cursors
        return PipeStatistics(
            self.sends, self.receives, self.bytes_sent, self.bytes_received, cursors.sent, cursors.received,
            self.times_blocked, cursors.high_water, self.rx_size, self.tx_size if self.failover.stage != LEFT else 0)

    @property
    def blocked_ns(self) -> int:
        """For so long the last send has found no room, and the peer has read nothing; 0: neither is so."""
        cdef TxWindow tx = self.tx
        if not self.waits or not tx.blocked or self.blocked_cons != tx.cons:
            return 0
        return self.qp.cq.clock.ns() - self.blocked_at

    cdef bint mark_blocked(self) noexcept:
        """A send waits for room; whether the peer must be told so."""
        cdef TxWindow tx = self.tx
        if not self.waits or self.blocked_cons != tx.cons:
            self.waits, self.blocked_cons, self.blocked_at = True, tx.cons, self.qp.cq.clock.ns()
        return tx.mark_blocked()

    cdef object nothing(self, Py_ssize_t max_bytes):
        """What an operation results in that can take no data: None or b"", or it raises."""
        if self.closed:
            raise ClosedResourceError("this end was closed, or has finished sending")
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, not {max_bytes}")
        if not self.told and not self.cursors.peer_has(ABNORMAL_CLOSE):
            if self.cursors.peer_has(SENDING_DONE):
                return b"" if self.rx.available() == 0 else None
            if self.failure is None:
                return None
        self.told = True
        raise BrokenResourceError(f"the connection is lost: {self.failure}") from self.failure

    # ---- whom it wakes

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

    # ---- what is unread, and what is to be said

    cdef void mark_unread(self) noexcept:
        if not self.unread and not self.closed:
            self.unread = True
            self.qp.unread += 1

    cdef bint has_unread(self) noexcept:
        """Whether more has come than counts as read. Behind a full ring, more may wait at the peer."""
        cdef uint32_t n = self.rx.available()
        return n > self.reads_ahead or n == self.rx_size

    cdef void judge_unread(self) noexcept:
        """Bytes have come, or were read, or another number of them counts as read."""
        if self.has_unread():
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

    cdef int announce(self, bint now) except -1:
        """Send a CDC, now if the link has credit and no other flow waits, else in turn."""
        self.cursors.update_wanted = True
        if self.failover.stage != ON_RDMA and (self.last_posted or self.failover.stage >= QUIESCED):
            return 0
        if now and not self.queued and not self.qp.failed and self.qp.can_message():
            return self.flush()
        self.qp.enqueue(self)
        return 0

    cdef int take_early(self) except -1:
        if self.early is not None:
            early, self.early = self.early, None
            self.on_cdc(<const unsigned char *>PyBytes_AS_STRING(early), CDC_BYTES)
            if self.early is None and self.rx.available() == 0:
                self.forget_unread()
        return 0

    # ---- opened with a ticket

    def greet(self) -> None:
        """Announce at once that this end takes part."""
        self.announce(True)

    def stand_alone(self) -> None:
        """The peer has never taken part, and never will: nothing is waited for at the end."""
        self.alone = True
        self.finish_if_done()

    # ---- end

    def forget(self) -> None:
        """The negotiation failed before the peer could use this pipe: unregister without a message."""
        self.shut = self.closed = self.finished = True
        self.forget_unread()
        self.qp.unregister(self)

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
        return self.last_posted and not self.qp.refused and self.qp.is_done(self.last_position)

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
                and not self.cursors.peer_has(ABNORMAL_CLOSE) and not self.cursors.local_has(ABNORMAL_CLOSE)
                and not self.failover.has_hole(self.qp))

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
        return self.failover.ledger(self.cursors, self.qp)

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
