# cython: language_level=3, boundscheck=False, wraparound=False
"""The pipe that the user of a stream holds, whatever carries the bytes: rings, or TCP once the stream has left RDMA.

A SwitchablePipe begins on a ring pipe. To move the stream, ``links/failover`` calls :meth:`send_by` with
the transport that carries sent bytes from now on, and :meth:`receive_by` with the one from which bytes are received
once the present one is drained. The two directions switch at their own time: the old rings are still read while bytes
are sent over TCP, and a stream may leave again before that is over. Callbacks and the end of the stream (EOF, close)
are kept here and passed on to each new transport.

While both directions are on rings, an operation is one C call more than that of the ring pipe itself.
"""
cimport cython
from libc.stdint cimport uint32_t, uint64_t

from ._ring cimport RingPipe
from ._ring_polling cimport busy_poll, poll_receive, poll_send

from .. import wake
from ..errors import Code, NegotiationError
from ._ring_life import PipeStatistics


_NOTHING = PipeStatistics(*[0] * len(PipeStatistics._fields))


@cython.final
cdef class SwitchablePipe:
    """:param ring: connected; both directions begin there."""

    def __init__(self, RingPipe ring not None):
        self.ring = self.sending_ring = self.receiving_ring = ring
        self.sending = self.receiving = ring
        self.past = _NOTHING

    # ---- sending

    def try_send(self, data, Py_ssize_t start=0) -> int:
        """Take as much of ``data[start:]`` as can go now; the number of bytes, 0 when none can.

        :raises ClosedResourceError: this side has closed the stream or finished sending.
        :raises BrokenResourceError: the connection broke or the peer has closed; the cause is chained.
        """
        if self.sending_ring is not None:
            return self.sending_ring.try_send(data, start)
        return self.sending.try_send(data, start)

    def poll_send(self, data, Py_ssize_t start=0) -> int:
        """try_send(), and again whenever polling finds room, as long as the policy allows; the number of bytes."""
        if self.sending_ring is not None:
            return poll_send(self.sending_ring, data, start)
        return self.sending.try_send(data, start)

    def send_eof(self) -> None:
        """Half-close: everything sent so far is followed by EOF at the peer. Idempotent."""
        if not self.eof_sent and not self.closed:
            self.eof_sent = True
            self.sending.send_eof()

    def sent_all(self) -> bool:
        """Whether what was taken is in the peer's ring or on its way there: in the kernel, on TCP."""
        return self.sending_ring is not None or self.sending.sent_all()

    @property
    def writable(self) -> int:
        """Bytes that can be sent now; on TCP 1 stands for some."""
        return self.sending.writable

    def spin_writable(self) -> bool:
        """Post what was put off; then, where the policy allows it, poll for room instead of parking."""
        if self.sending_ring is not None:
            return busy_poll(self.sending_ring, False, 1)
        self.ring.qp.cq.flush()
        return False

    # ---- receiving

    def try_receive(self, Py_ssize_t max_bytes):
        """Up to max_bytes as bytes; None when there is nothing now, b"" when the peer has finished sending.

        :raises ClosedResourceError: this side has closed the stream.
        :raises BrokenResourceError: the connection broke or the peer aborted (after everything that arrived has been
        read).
        """
        if self.following is None and self.receiving_ring is not None:
            return self.receiving_ring.try_receive(max_bytes)
        while True:
            data = self.receiving.try_receive(max_bytes)
            if data is not None or not self.advance():
                return data

    def poll_receive(self, Py_ssize_t max_bytes):
        """try_receive(), after polling for as long as the policy allows when there is nothing yet."""
        if self.following is None and self.receiving_ring is not None:
            return poll_receive(self.receiving_ring, max_bytes)
        self.spin_readable()
        return self.try_receive(max_bytes)

    def try_receive_into(self, buffer) -> int:
        """Fill a writable buffer; the number of bytes, -1: there is nothing now, 0: the peer has finished sending."""
        cdef Py_ssize_t n
        if self.following is None and self.receiving_ring is not None:
            return self.receiving_ring.try_receive_into(buffer)
        while True:
            n = self.receiving.try_receive_into(buffer)
            if n >= 0 or not self.advance():
                return n

    def view(self) -> memoryview:
        """Readable bytes without a copy; may be empty. Valid until consume()."""
        while True:
            view = self.receiving.view()
            if len(view) or not self.advance():
                return view

    def consume(self, Py_ssize_t n) -> None:
        """The first n bytes of view() are taken."""
        self.receiving.consume(n)

    @property
    def readable(self) -> int:
        """Bytes that can be received now."""
        if self.following is None and self.receiving_ring is not None:
            return self.receiving_ring.rx.available()
        while True:
            n = self.receiving.readable
            if n or not self.advance():
                return n

    @property
    def at_eof(self) -> bool:
        """The peer has finished sending, and everything was received."""
        self.advance()
        return self.receiving.at_eof

    def spin_readable(self) -> bool:
        """Post what was put off; then, where the policy allows it now, poll for a while instead of parking.
        True when there is something to read, EOF or an error."""
        self.advance()
        if self.receiving_ring is not None:
            return busy_poll(self.receiving_ring, True, 1)
        self.ring.qp.cq.flush()
        return self.readable > 0 or self.receiving.at_eof or self.receiving.error is not None

    def look(self) -> None:
        """Notice what has come, data, room, or the end, whether or not the loop has had a turn since."""
        self.ring.qp.cq.catch_up()
        if self.fallback is not None:
            self.fallback.look()
        elif self.ring.owner is not None:
            self.ring.owner.look_at_tcp()

    # ---- callbacks and state

    @property
    def on_readable(self):
        """Called when data, the end or an error has come."""
        return self._on_readable

    @on_readable.setter
    def on_readable(self, callback) -> None:
        self._on_readable = callback
        for transport in self.transports():
            transport.on_readable = callback

    @property
    def on_writable(self):
        """Called when there is room again after try_send() came short, or on an error."""
        return self._on_writable

    @on_writable.setter
    def on_writable(self, callback) -> None:
        self._on_writable = callback
        for transport in self.transports():
            transport.on_writable = callback

    @property
    def pushes(self) -> bool:
        """Its owner is called from the loop when something arrives, and does not poll: the engine does."""
        return self._pushes

    @pushes.setter
    def pushes(self, bint value) -> None:
        self._pushes = self.ring.pushes = value

    @property
    def reads_ahead(self) -> int:
        """So many bytes that have come count as read where this process ends: see ``contracts.Pipe``."""
        return self._reads_ahead

    @reads_ahead.setter
    def reads_ahead(self, uint32_t n) -> None:
        self._reads_ahead = n
        self.ring.read_ahead(n)

    @property
    def has_unread(self) -> bool:
        """Whether more has come than counts as read: the peer of a process that ends now gets a reset."""
        if self.following is None and self.receiving_ring is not None:
            return self.receiving_ring.has_unread()
        return self.readable > self._reads_ahead

    @property
    def path(self) -> str:
        """ "rdma", or "tcp" while the stream is off RDMA."""
        return "rdma" if self.fallback is None else "tcp"

    @property
    def fallback_reason(self):
        """Why the stream has left RDMA (FallbackReason), None while it has not."""
        return None if self.fallback is None else self.fallback.reason

    @property
    def error(self) -> BaseException | None:
        """Why the stream is broken, None while it is not."""
        error = self.sending.error
        return self.receiving.error if error is None else error

    @property
    def counters(self) -> tuple[int, int]:
        """Bytes sent and received, over all transports."""
        cdef uint64_t sent = self.past.bytes_sent, received = self.past.bytes_received
        for transport in self.transports():
            more_sent, more_received = transport.counters
            sent += more_sent
            received += more_received
        return sent, received

    def statistics(self) -> PipeStatistics:
        """What happened so far, over all transports. The sizes are those of the newest rings."""
        total = self.past
        for transport in self.transports():
            total = _sum(total, transport)
        size, peer_size = self.ring.rx_size, self.ring.tx_size
        return total._replace(ring_bytes=size, peer_ring_bytes=peer_size if self.sending_ring is not None else 0)

    # ---- the end

    def close(self) -> None:
        """Close both directions; what was sent still arrives. Idempotent."""
        self.closed = True
        self._on_readable = self._on_writable = None
        for transport in self.transports():
            transport.close()

    def abort(self) -> None:
        """Close at once; the peer gets an error instead of EOF. Idempotent."""
        self.closed = True
        self._on_readable = self._on_writable = None
        for transport in self.transports():
            transport.abort()

    # ---- switching

    def attach_tcp(self, carrier, bytes received=b"") -> None:
        """Hand over the TCP connection that the stream began on: it stays open as liveness signal, and carries the
        stream if RDMA fails. It is closed at the end. The loop may watch it: its watch is taken over, too.

        :param received: what the peer has sent on it since it became silent.
        """
        if self.ring.owner is None:     # over already
            wake.current().unwatch_fd(carrier.fileno())
            carrier.close()
        else:
            self.ring.owner.attach_tcp(carrier, received)

    def leave(self, code, str text="") -> bool:
        """Have the stream leave RDMA and go on over its TCP connection; whether that has begun."""
        return self.ring.owner is not None and self.ring.owner.leave(code, text)

    def rejoin(self):
        """Have the stream return to RDMA: an attempt (``links.failover.rejoin.Rejoin``).

        :raises NegotiationError: it is on RDMA, closed or half-closed.
        """
        if self.fallback is None:
            raise NegotiationError(Code.OUT_OF_SYNC, "the stream is on RDMA")
        return self.fallback.rejoin()

    def left_rdma(self, fallback) -> None:
        """The stream has left RDMA: ``fallback`` carries it, and what is received behind the rest of the ring."""
        self.fallback = fallback
        self.receive_by(fallback)
        self.send_by(fallback)

    def rejoined_rdma(self) -> None:
        """Both directions are on rings again, as far as the peer is concerned."""
        self.fallback = None

    def adopt(self, RingPipe ring not None) -> None:
        """New rings are there, to which both directions will switch."""
        self.ring = ring
        if ring.owner is not None:      # otherwise it is over already
            ring.owner.connection = self
        ring.pushes = self._pushes
        ring.read_ahead(self._reads_ahead)
        ring.on_readable, ring.on_writable = self._on_readable, self._on_writable

    def send_by(self, transport) -> None:
        """Send by another transport from now on."""
        before, self.sending = self.sending, transport
        self.sending_ring = transport if isinstance(transport, RingPipe) else None
        transport.on_readable, transport.on_writable = self._on_readable, self._on_writable
        if self.closed:
            transport.close()
        elif self.eof_sent:
            transport.send_eof()
        self.retire(before)
        self.wake(self._on_writable)

    def receive_by(self, transport) -> None:
        """Receive from another transport as soon as what comes before is drained."""
        transport.on_readable, transport.on_writable = self._on_readable, self._on_writable
        if self.following is None:
            self.following = []
        self.following.append(transport)
        if self.closed:
            transport.close()
        self.wake(self._on_readable)

    def stay_on(self, transport, instead_of) -> None:
        """Switching has failed: what went by ``instead_of`` is lost, and ``transport`` reports it."""
        if self.following is not None:
            self.following = [each for each in self.following if each is not instead_of] or None
        if self.receiving is instead_of:
            self.receive_from(transport)
        if self.sending is instead_of:
            self.send_by(transport)
        self.wake(self._on_readable)

    cdef list transports(self):
        """All that are in use, each once."""
        found = [self.receiving]
        for transport in self.following or ():
            if transport not in found:
                found.append(transport)
        if self.sending not in found:
            found.append(self.sending)
        return found

    cdef int retire(self, transport) except -1:
        """It may have been the last use of this transport."""
        if transport not in self.transports():
            self.past = _sum(self.past, transport)
        return 0

    cdef int receive_from(self, transport) except -1:
        before, self.receiving = self.receiving, transport
        self.receiving_ring = transport if isinstance(transport, RingPipe) else None
        return self.retire(before)

    cdef bint advance(self) except -1:
        """Go on to the transport that follows, if all of this one has been read; whether that was so."""
        cdef bint moved = False
        while self.following is not None and self.receiving.drained:
            transport = self.following.pop(0)
            if not self.following:
                self.following = None
            self.receive_from(transport)
            moved = True
        return moved

    cdef int wake(self, callback) except -1:
        if callback is not None:
            self.ring.qp.cq.wakes += 1
            self.ring.call(callback)
        return 0


cdef object _sum(total, transport):
    """The statistics with those of one more transport."""
    if isinstance(transport, RingPipe):
        sums = [one + other for one, other in zip(total, transport.statistics(), strict=True)]
        return PipeStatistics(*sums)._replace(
            receive_high_water=max(total.receive_high_water, (<RingPipe>transport).cursors.high_water))
    sent, received = transport.counters
    return total._replace(bytes_sent=total.bytes_sent + sent, bytes_received=total.bytes_received + received)
