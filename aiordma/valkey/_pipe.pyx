# cython: language_level=3, boundscheck=False, wraparound=False
"""A byte pipe by Valkey's RDMA protocol, on a queue pair of its own: what a stream to a valkey-server stands on.

Sending: WRITE with immediate data into the server's transfer buffer, as far as that has room and the server has
receives (``proto/valkey.py``). Small pieces that are written in one turn of the loop go in one WRITE, at its end or when
this side polls or parks, whichever is first: each WRITE costs the server a receive, a completion and a read.
Receiving: the server does the same into the buffers of this end, which lie side by side and are read like one ring. A
buffer is registered as soon as the one before is full and this one was read. _requests.pyx has what is posted.

The protocol has no half-close: the server learns of the end of sending when the connection is closed.
"""
cimport cython
from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from ..plain cimport check_plain
from ..datapath._hybrid cimport FOUND, hybrid_poll
from ..datapath._verbs cimport IBV_SEND_INLINE
from ..proto.valkey cimport Outgoing
from ..verbs._copy cimport aio_copy
from ._requests cimport ValkeyRequests

from anyio import BrokenResourceError, ClosedResourceError

from ..errors import LinkError

cdef enum:
    STEP = 262144               # most bytes of one WRITE: the server reads while the next one is copied
    STAGED_BYTES = 1024         # what is written without polling, up to this size, waits for the end of the tick
    STAGE_BYTES = 16384         # and no more of it
    SEND_STEP = 1 << 20         # most bytes of one poll_send(): then others of the loop may want their turn
    BIG_RECEIVE = 32768         # from here on results come from the engine's pool


cdef bint can_read(void *pipe, uint64_t _) noexcept:
    cdef ValkeyPipe self = <ValkeyPipe>pipe
    return self.failure is not None or self.closed or self.ended or self.incoming.readable() > 0


cdef bint can_write(void *pipe, uint64_t _) noexcept:
    cdef ValkeyPipe self = <ValkeyPipe>pipe
    return self.failure is not None or self.closed or self.ended or self.room() > 0


@cython.final
cdef class ValkeyPipe(ValkeyRequests):
    """The bytes of it. The contract of ``pipes.contracts.Pipe``."""

    # ---- sending

    cdef int check_sendable(self) except -1:
        if self.closed or self.eof_sent:
            raise ClosedResourceError("this end was closed, or has finished sending")
        if self.failure is not None:
            raise BrokenResourceError(f"the connection is lost: {self.failure}") from self.failure
        if self.ended:
            raise BrokenResourceError("the server has closed the connection") from LinkError(
                "the server has closed the connection")
        return 0

    def try_send(self, data, Py_ssize_t start=0) -> int:
        """Put as much of ``data[start:]`` as the server's buffer has room for; the number of bytes.

        :raises ClosedResourceError: this side has closed the connection or finished sending.
        :raises BrokenResourceError: the connection broke, or the server has closed it; the cause is chained.
        """
        return self.place_object(data, start, False)

    def poll_send(self, data, Py_ssize_t start=0) -> int:
        """try_send(), and again whenever polling finds room, as long as the policy allows; the number of bytes."""
        return self.place_object(data, start, True)

    cdef Py_ssize_t place_object(self, data, Py_ssize_t start, bint polling) except -1:
        cdef Py_buffer view
        cdef Py_ssize_t n, placed = 0
        self.check_sendable()
        if not polling and PyBytes_CheckExact(data):
            n = PyBytes_GET_SIZE(data) - start
            if 0 < n <= STAGED_BYTES and start >= 0 and self.stage(
                    <const unsigned char *>PyBytes_AS_STRING(data) + start, <uint32_t>n):
                return n
            return self.put(<const unsigned char *>PyBytes_AS_STRING(data) + start, n) if n > 0 and start >= 0 else 0
        check_plain(data)
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            n = view.len - start
            while start >= 0 and placed < n:
                placed += self.put(<const unsigned char *>view.buf + start + placed, n - placed)
                # The next call reports what ends the connection.
                if (not polling or placed == n or placed >= SEND_STEP or not self.busy_poll(False)
                        or self.failure is not None or self.ended or self.closed):
                    break
        finally:
            PyBuffer_Release(&view)
        return placed

    cdef bint stage(self, const unsigned char *data, uint32_t n) except -1:
        """Keep n bytes for the end of the tick; False: there is no room for them."""
        if n > self.room():
            return False
        aio_copy(self.mirror + self.mirrored + self.staged, data, n)
        self.staged += n
        self.bytes_sent += n
        self.sends += 1
        self.blocked = False
        if self.staged >= STAGE_BYTES:
            self.post_staged()
        elif not self.dirty:
            self.dirty = True
            self.cq.mark_dirty(self)
        else:
            self.cq.flush_if_late()
        return True

    cdef Py_ssize_t put(self, const unsigned char *data, Py_ssize_t n) except -1:
        cdef Outgoing out = self.outgoing
        cdef Py_ssize_t placed = 0
        cdef uint32_t want, room, flags, lkey
        cdef uint64_t source
        self.post_staged()
        while placed < n and self.failure is None:
            room = self.room()
            if room == 0:
                break
            want = STEP if n - placed > STEP else <uint32_t>(n - placed)
            want = min(want, room)
            flags, lkey = 0, 0
            source = <uint64_t><uintptr_t>(data + placed)
            if want <= self.max_inline:
                flags = IBV_SEND_INLINE
            else:
                aio_copy(self.mirror + self.mirrored, data + placed, want)
                source, lkey = <uint64_t><uintptr_t>(self.mirror + self.mirrored), self.mirror_lkey
            placed += want
            self.bytes_sent += want
            self.post_write(source, want, lkey, flags)
        if placed:
            self.sends += 1
        self.blocked = placed < n
        self.times_blocked += self.blocked
        return placed

    def send_eof(self) -> None:
        """Send nothing more. The protocol cannot tell that to the server."""
        self.eof_sent = True

    # ---- receiving

    def try_receive(self, Py_ssize_t max_bytes):
        """Up to max_bytes as bytes; None when there is nothing now, b"" when the server has closed the connection.

        :raises ClosedResourceError: this side has closed it.
        :raises BrokenResourceError: the connection broke (after everything that arrived has been read).
        """
        cdef uint64_t n = self.incoming.readable()
        cdef bytes out
        if n == 0 or self.closed or max_bytes < 1:
            return self.nothing(max_bytes)
        if n > <uint64_t>max_bytes:
            n = <uint64_t>max_bytes
        out = PyBytes_FromStringAndSize(NULL, n) if n < BIG_RECEIVE else self.cq.spare.take(n)
        self.copy_out(<unsigned char *>PyBytes_AS_STRING(out), n)
        self.receives += 1
        return out

    def poll_receive(self, Py_ssize_t max_bytes):
        """try_receive(), after polling for as long as the policy allows when there is nothing yet."""
        if self.incoming.readable() == 0 and not self.busy_poll(True):
            return None if max_bytes > 0 else self.nothing(max_bytes)
        return self.try_receive(max_bytes)

    def try_receive_into(self, buffer) -> int:
        """Fill a writable buffer; the number of bytes, -1: nothing now, 0: the server has closed the connection."""
        cdef Py_buffer view
        cdef uint64_t n = self.incoming.readable()
        check_plain(buffer)
        PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
        try:
            if n == 0 or self.closed or view.len < 1:
                return 0 if self.nothing(view.len) is not None else -1
            if n > <uint64_t>view.len:
                n = <uint64_t>view.len
            self.copy_out(<unsigned char *>view.buf, n)
        finally:
            PyBuffer_Release(&view)
        self.receives += 1
        return n

    cdef int copy_out(self, unsigned char *to, uint64_t n) except -1:
        """Read n bytes. A buffer that was read is registered before the rest is copied."""
        cdef uint64_t piece
        while n > 0:
            piece = self.incoming.contiguous()
            if piece > self.incoming.size:
                piece = self.incoming.size
            if piece > n:
                piece = n
            aio_copy(to, self.buffers + self.incoming.offset(), piece)
            self.consumed(piece)
            to += piece
            n -= piece
        return 0

    cdef int consumed(self, uint64_t n) except -1:
        self.incoming.consume(n)
        self.bytes_received += n
        return self.register_if_due()

    cdef object nothing(self, Py_ssize_t max_bytes):
        """What an operation results in that can take no data: None or b"", or it raises."""
        if self.closed:
            raise ClosedResourceError("this end was closed, or has finished sending")
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, not {max_bytes}")
        if self.failure is not None:
            raise BrokenResourceError(f"the connection is lost: {self.failure}") from self.failure
        return b"" if self.ended else None

    def view(self) -> memoryview:
        """Readable bytes without a copy; may be empty. Valid until consume()."""
        cdef uint64_t n = self.incoming.contiguous()
        if n == 0 or self.closed:
            self.nothing(1)
            return memoryview(b"")
        return PyMemoryView_FromMemory(<char *>self.buffers + self.incoming.offset(), n, PyBUF_READ)

    def consume(self, Py_ssize_t n) -> None:
        """The first n bytes of view() are taken."""
        if n < 0 or <uint64_t>n > self.incoming.readable():
            raise ValueError(f"consume({n}): {self.incoming.readable()} bytes are readable")
        if n and not self.closed:
            self.receives += 1
            self.consumed(n)

    # ---- hybrid polling

    def spin_readable(self) -> bool:
        """Where the policy allows it now, poll for a while instead of parking. True: there is something to read, or
        the end, or an error."""
        return self.busy_poll(True)

    def look(self) -> None:
        """Notice what has come, whether or not the loop has had a turn since."""
        self.cq.catch_up()

    def spin_writable(self) -> bool:
        """The same for room to send."""
        return self.busy_poll(False)

    cdef bint busy_poll(self, bint reading) except -1:
        return hybrid_poll(self.cq, can_read if reading else can_write, <void *>self, 0) == FOUND
