# cython: language_level=3, boundscheck=False, wraparound=False
"""Messages on a ring: records (``proto/record.py``) that are placed whole or not at all.

How they are sent is in ``_ring_records_send.pyx``.

When the pipe fails over to TCP (``links/failover``), so do the records: what was accepted is sent there, and what
arrives is read through a :class:`~aiordma.proto.record.RecordReader`, beginning with the rest of the ring.
"""
from cpython.buffer cimport PyBUF_READ
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint32_t

from anyio import BrokenResourceError, ClosedResourceError, EndOfStream

from ..verbs._copy cimport aio_copy, bytes_of
from ._ring cimport RingPipe
from ._ring_cursors cimport SENDING_DONE
from ._ring_failover cimport LEFT
from ._ring_polling cimport busy_poll
from ._ring_records_send cimport HEADER, RecordSender
from ._switchable cimport SwitchablePipe

from ..errors import RemoteProtocolError
from ..proto.record import RecordReader

cdef enum:
    READ_BYTES = 65536
    EOF = 1
    CLOSE = 2


cdef class RingDatagrams(RecordSender):
    """Both directions of a connection that keeps message boundaries. Nothing here waits. Owns the pipe.

    :param pipe: connected, on rings.
    """

    def __init__(self, SwitchablePipe pipe not None):
        RecordSender.__init__(self, pipe)
        self.max_receive = self.rings.rx.size - HEADER

    # ---- receiving

    cdef Py_ssize_t arrived(self) except -2:
        """Size of the next message when all of it is here, else -1."""
        cdef RingPipe rings = self.rings
        cdef uint32_t available = rings.rx.available(), offset, mask = rings.rx.mask, n
        cdef const unsigned char *ring = rings.rx_memory
        if rings.failover.stage == LEFT:
            return self.arrived_elsewhere()
        if available < HEADER or rings.closed or self.faulty:
            return -1
        offset = rings.rx.offset()
        n = (<uint32_t>ring[offset] << 24 | <uint32_t>ring[(offset + 1) & mask] << 16
             | <uint32_t>ring[(offset + 2) & mask] << 8 | ring[(offset + 3) & mask])
        if n > self.max_receive:
            self.fault(f"it announces a message of {n} bytes in a ring of {rings.rx.size}")
            return -1
        return n if available - HEADER >= n else -1

    cdef Py_ssize_t arrived_elsewhere(self) except -2:
        """The same once the pipe has left RDMA; what is left in the ring comes through it as well."""
        if self.faulty:
            return -1
        if self.reader is None:
            self.reader = RecordReader(self.max_receive)
        try:
            while True:
                view = self.reader.peek()
                if view is not None:
                    return len(view)
                data = None if self.reader_done else self.pipe.try_receive(READ_BYTES)
                if data is None:
                    return -1
                if data:
                    self.reader.feed(data)
                else:
                    self.reader_done = True
        except RemoteProtocolError as error:
            self.fault(error)
        return -1

    cdef object take(self, Py_ssize_t n):
        cdef RingPipe rings = self.rings
        if self.reader is not None:
            self.messages_received += 1
            return self.reader.take()
        cdef uint32_t offset = (rings.rx.offset() + HEADER) & rings.rx.mask, first = rings.rx_size - offset
        cdef bytes out
        cdef char *to
        if first >= n:
            out = bytes_of(rings.rx_memory + offset, n)
        else:
            out = PyBytes_FromStringAndSize(NULL, n)
            to = PyBytes_AS_STRING(out)
            aio_copy(to, rings.rx_memory + offset, first)
            aio_copy(to + first, rings.rx_memory, n - first)
        rings.consumed(<uint32_t>n + HEADER)
        self.messages_received += 1
        return out

    def try_receive(self) -> bytes | None:
        """The next message, None when none is here.

        :raises EndOfStream: the peer has finished sending, and everything was received.
        :raises ClosedResourceError: this side has closed the connection.
        :raises BrokenResourceError: the link broke, the peer aborted or broke the protocol.
        """
        cdef Py_ssize_t n = self.arrived()
        return self.take(n) if n >= 0 else self.nothing()

    def poll_receive(self) -> bytes | None:
        """try_receive(), after polling for as long as the policy allows when there is nothing yet."""
        cdef Py_ssize_t n = self.arrived()
        if n < 0 and not self.faulty and self.spin_readable():
            n = self.arrived()
        return self.take(n) if n >= 0 else self.nothing()

    def receive_many(self, Py_ssize_t most) -> list | None:
        """Up to ``most`` messages that are here; None when none is. Raises as try_receive()."""
        cdef list out
        cdef Py_ssize_t n = self.arrived()
        if n < 0:
            return self.nothing()
        out = []
        while n >= 0:
            out.append(self.take(n))
            if len(out) >= most:
                break
            try:
                n = self.arrived()
            except (BrokenResourceError, ClosedResourceError):
                break           # the next call says it again
        return out

    def peek(self) -> memoryview | None:
        """The next message without taking it; without a copy unless it runs over the end of the ring. Valid until
        discard(). None and errors as in try_receive()."""
        cdef RingPipe rings = self.rings
        cdef Py_ssize_t n = self.arrived()
        cdef uint32_t offset, first
        if n < 0:
            return self.nothing()
        if self.reader is not None:
            return self.reader.peek()
        offset = (rings.rx.offset() + HEADER) & rings.rx.mask
        first = rings.rx_size - offset
        if first >= n:
            return PyMemoryView_FromMemory(<char *>rings.rx_memory + offset, n, PyBUF_READ)
        return memoryview(bytes_of(rings.rx_memory + offset, first) + bytes_of(rings.rx_memory, n - first))

    def discard(self) -> None:
        """Take the message that peek() showed."""
        cdef Py_ssize_t n = self.arrived()
        if n < 0:
            raise ValueError("discard(): no message is here")
        self.messages_received += 1
        if self.reader is not None:
            self.reader.take()
        else:
            self.rings.consumed(<uint32_t>n + HEADER)

    cdef object nothing(self):
        """What an operation results in when no whole message is here: None, or it raises."""
        if self.faulty:
            raise BrokenResourceError(f"the connection is lost: {self.error}") from self.error
        if self.reader is not None:
            if not self.reader_done:
                return None
            if not self.reader.pending:
                raise EndOfStream("the peer has finished sending, and everything was received")
            self.fault("it finished in the middle of a message")
            raise BrokenResourceError(f"the connection is lost: {self.error}") from self.error
        if self.rings.nothing(1) is not None:
            raise EndOfStream("the peer has finished sending, and everything was received")
        if self.rings.rx.available() and self.rings.cursors.peer_has(SENDING_DONE):
            self.fault("it finished in the middle of a message")
            raise BrokenResourceError(f"the connection is lost: {self.error}") from self.error
        return None

    cdef int fault(self, object reason) except -1:
        """The peer's bytes are not records: nothing after this can be told apart."""
        return self.break_off(RemoteProtocolError(f"the peer broke the protocol of datagrams: {reason}"))

    cdef int break_off(self, object error) except -1:
        self.faulty = True
        if self.rings.failover.stage == LEFT:
            callbacks = self.pipe.on_readable, self._on_writable
            self.failure = error
            self.pipe.abort()
            for callback in callbacks:
                if callback is not None:
                    self.rings.call(callback)
        else:
            self.rings.on_broken(error)
            self.rings.abort_after_fault()
        return 0

    # ---- polling

    def spin_readable(self) -> bool:
        """Where the policy allows it, poll for a message instead of parking; True when it is worth to look."""
        if self.rings.failover.stage == LEFT:
            return self.pipe.spin_readable()
        # More than what is here: part of a message is no reason to stop.
        return busy_poll(self.rings, True, self.rings.rx.available() + 1)

    def look(self) -> None:
        """Notice what has come, whether or not the loop has had a turn since."""
        self.pipe.look()

    def spin_writable(self, uint32_t message_bytes) -> bool:
        """The same for room for a message of that size."""
        if self.rings.failover.stage == LEFT:
            return self.pipe.spin_writable()
        return busy_poll(self.rings, False, message_bytes + HEADER + self.staged)

    # ---- the end

    def send_eof(self) -> None:
        """Behind what was accepted, the peer gets EndOfStream. Idempotent."""
        if not self.ending:
            self.ending = EOF
            self.end()

    def close(self) -> None:
        """Close both directions; what was accepted still arrives. Idempotent."""
        if self.ending != CLOSE:
            self.ending = CLOSE
            self.pipe.on_readable = self._on_writable = None
            self.end()

    cdef int end(self) except -1:
        """Carry out send_eof() or close(), if nothing waits any more."""
        self.push()
        if (self.staged or self.rest is not None) and self.error is None and not self.is_lost():
            return 0            # _on_room() calls this again
        if self.ending == CLOSE:
            self.pipe.close()
        else:
            self.pipe.send_eof()
        return 0

    def abort(self) -> None:
        """Close at once; the peer gets an error."""
        self.ending = CLOSE
        self.staged = 0
        self.rest = None
        self._on_writable = None
        self.pipe.abort()

    # ---- callbacks and state

    @property
    def on_readable(self):
        """Called when something has arrived: a message, part of one, the end, an error."""
        return self.pipe.on_readable

    @on_readable.setter
    def on_readable(self, callback) -> None:
        self.pipe.on_readable = callback

    @property
    def error(self):
        """Why the connection is broken, None while it is not."""
        return self.pipe.error if self.failure is None else self.failure

    @property
    def path(self) -> str:
        """ "rdma", or "tcp" when the connection has left RDMA."""
        return self.pipe.path

    @property
    def fallback_reason(self):
        """Why the connection has left RDMA, or None."""
        return self.pipe.fallback_reason

    @property
    def ring(self) -> SwitchablePipe:
        """The pipe underneath, for its statistics."""
        return self.pipe
