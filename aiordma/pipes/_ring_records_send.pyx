# cython: language_level=3, boundscheck=False, wraparound=False
"""The sending half of messages on a ring (``_ring_records.pyx``).

Small messages are gathered: a message finds the link idle and is posted at once, those that come while it is under
way go out together in one WRITE, at the end of the loop's tick, before this side polls or parks, or when the
stage is full, whichever is first. So a burst costs a copy per message, and a lone one no delay.

Credit is the peer's ring: a message is accepted when the ring has room for all of it. On devices that take no
large payload inline an accepted message may have to wait for a work request or for room in the mirror; the rest of it
is kept here and goes before anything else. Closing waits for it.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove

from anyio import BrokenResourceError, ClosedResourceError

from ..plain cimport check_plain
from .._cq cimport CompletionOwner
from ..verbs._copy cimport bytes_of
from ._ring cimport RingPipe
from ._ring_failover cimport LEFT, ON_RDMA
from ._switchable cimport SwitchablePipe

from ..proto.record import too_large

cdef enum:
    STAGE_BYTES = 8192
    GATHERED = 2048         # messages up to this size go through the stage


cdef class RecordSender(CompletionOwner):
    """What ``RingDatagrams`` stands on."""

    def __cinit__(self, *args):
        self.stage = <unsigned char *>malloc(STAGE_BYTES)
        if self.stage == NULL:
            raise MemoryError

    def __init__(self, SwitchablePipe pipe not None):
        self.pipe = pipe
        self.rings = pipe.ring
        self.cq = self.rings.qp.cq
        self.max_message_bytes = self.rings.tx.size - HEADER

    def __dealloc__(self):
        free(self.stage)

    cdef int end(self) except -1:
        """All of what was accepted is placed: carry out what was put off."""
        raise NotImplementedError

    cdef int break_off(self, object error) except -1:
        """The connection cannot go on."""
        raise NotImplementedError

    # ---- sending

    def try_send(self, data) -> bool:
        """Accept the whole message, or nothing of it (False: the peer's ring has no room for it now).

        :raises OSError: (EMSGSIZE) it will never fit.
        :raises ClosedResourceError: this side has closed the connection or finished sending.
        :raises BrokenResourceError: the link broke or the peer has closed; the cause is chained.
        """
        cdef Py_buffer view
        self.check()
        if PyBytes_CheckExact(data):
            return self.put(<const unsigned char *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), data)
        check_plain(data)
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            return self.put(<const unsigned char *>view.buf, view.len, None)
        finally:
            PyBuffer_Release(&view)

    def send_many(self, messages, Py_ssize_t start=0) -> int:
        """Accept messages of a list or tuple from index ``start`` on, in order, until one finds no room; how many
        were accepted. An error of a later message is raised when it is the first."""
        cdef Py_ssize_t i
        for i in range(start, len(messages)):
            try:
                if not self.try_send(messages[i]):
                    return i - start
            except Exception:
                if i == start:
                    raise
                return i - start
        return max(0, <Py_ssize_t>len(messages) - start)

    cdef int check(self) except -1:
        if self.ending:
            raise ClosedResourceError("this end was closed, or has finished sending")
        if self.failure is not None:
            raise BrokenResourceError(f"the connection is lost: {self.failure}") from self.failure
        if self.rings.failover.stage == LEFT:
            self.pipe.try_send(b"")
            return 0
        return self.rings.check_sendable()

    cdef bint put(self, const unsigned char *data, Py_ssize_t n, object owner) except -1:
        cdef RingPipe rings = self.rings
        cdef Py_ssize_t placed
        cdef unsigned char *at
        if n > self.max_message_bytes:
            raise too_large(n, self.max_message_bytes)
        if self.rest is not None:
            self.push()
            if self.rest is not None:
                return self.refuse()
        if rings.failover.stage != ON_RDMA:
            if rings.failover.stage != LEFT or self.staged:
                return self.refuse()
        elif n + HEADER > <Py_ssize_t>rings.tx.free() - self.staged:
            return self.refuse()
        if self.staged + HEADER + (n if n <= GATHERED else 0) > STAGE_BYTES:
            self.push()
            if self.staged > 0:
                return self.refuse()
        at = self.stage + self.staged
        at[0], at[1], at[2], at[3] = (n >> 24) & 0xff, (n >> 16) & 0xff, (n >> 8) & 0xff, n & 0xff
        self.staged += HEADER
        self.messages_sent += 1
        if n <= GATHERED:
            memcpy(at + HEADER, data, n)
            self.staged += <uint32_t>n
            if rings.failover.stage != ON_RDMA:
                self.push()
            elif not rings.queued and rings.comes_first():
                rings.firsts += 1       # placing asks again
                self.push()
            else:
                if not self.counted:
                    self.counted = True
                    rings.qp.staged += 1
                    rings.qp.say_held(True)
                if not self.dirty:
                    self.dirty = True
                    self.cq.mark_dirty(self)
                else:
                    self.cq.flush_if_late()
            return True
        self.push()
        try:
            placed = self.put_bytes(data, n) if self.staged == 0 else 0
            if placed < n:
                self.rest_at = 0 if owner is None else placed
                self.rest = bytes_of(data + placed, n - placed) if owner is None else owner
                self.watch()
        except MemoryError as error:
            self.break_off(error)       # the peer waits for the rest of it
            raise
        return True

    cdef Py_ssize_t put_bytes(self, const unsigned char *data, Py_ssize_t n) except -1:
        """On the ring, or on the transport that carries the stream on."""
        cdef RingPipe rings = self.rings
        if rings.failover.stage == ON_RDMA:
            return rings.put_bytes(data, n)
        if rings.failover.stage != LEFT:
            return 0
        return self.pipe.try_send(bytes_of(data, n))

    cdef bint is_lost(self) noexcept:
        """What was accepted and is not placed yet never will be."""
        cdef RingPipe rings = self.rings
        if rings.failover.stage == LEFT:
            return self.lost
        return rings.failure is not None or rings.shut or rings.closed

    cdef int push(self) except -1:
        """Put what was accepted, as much of it as is taken now."""
        cdef Py_ssize_t placed, n
        if self.posting or self.is_lost():
            return 0
        self.posting = True
        try:
            if self.staged:
                placed = self.put_bytes(self.stage, self.staged)
                self.posts += 1
                self.staged -= <uint32_t>placed
                if self.staged:
                    memmove(self.stage, self.stage + placed, self.staged)
            if self.staged == 0 and self.rest is not None:
                n = PyBytes_GET_SIZE(self.rest) - self.rest_at
                placed = self.put_bytes(<const unsigned char *>PyBytes_AS_STRING(self.rest) + self.rest_at, n)
                self.rest_at += placed
                if placed == n:
                    self.rest = None
            if (self.staged or self.rest is not None) and not self.cq.helping:
                self.watch()        # which polls; where a thread helps, the loop comes here again
        except (BrokenResourceError, ClosedResourceError):
            self.lost = True    # the next operation reports it
        except MemoryError as error:
            if self.cq.helping:
                raise
            self.break_off(error)       # what is out, and what is not, cannot be told
        finally:
            self.posting = False
        return 0

    cdef bint refuse(self) except -1:
        """No room: post what waits, so that the peer can make some, and have the peer announce that."""
        cdef RingPipe rings = self.rings
        self.push()
        self.blocked = True
        self.times_blocked += 1
        self.watch()
        if rings.failover.stage == ON_RDMA and not self.is_lost() and rings.mark_blocked():
            rings.announce(True)
        return False

    cdef int watch(self) except -1:
        if not self.watching:
            self.watching = True
            self.pipe.on_writable = self._on_room
        return 0

    def _on_room(self) -> None:
        """Credit or work requests have come back, or an error."""
        self.push()
        if self.ending:
            self.end()
        elif self.blocked and self._on_writable is not None:
            self.blocked = False
            self._on_writable()

    cdef int flush(self) except -1:
        """The end of the tick."""
        self.dirty = False
        self.push_all()
        self.uncount()
        if not self.rings.qp.waiting_flows:
            self.rings.qp.say_held(False)
        return 0

    cdef int push_all(self) except -1:
        """Put what was accepted, and announce it."""
        if self.rest is None:
            self.uncount()          # before the post: it may be the last of what the link holds back
        self.push()
        if self.rings.cursors.unannounced and not self.is_lost():
            self.rings.announce(True)
        return 0

    cdef void uncount(self) noexcept:
        if self.counted:
            self.counted = False
            self.rings.qp.staged -= 1

    cdef bint flush_beside(self) except -1:
        if self.posting:
            return False
        # What is more than the stage has may take long to post, and off RDMA it takes Python.
        cdef RingPipe rings = self.rings
        if self.rest is None and rings.failover.stage == ON_RDMA and rings.qp.hook is None and not rings.qp.refused \
                and rings.tx.free() >= self.staged:
            self.push_all()
            if self.staged == 0 and not rings.queued and not rings.qp.waiting_flows:
                rings.qp.say_held(False)
        return True

    @property
    def unsent(self) -> int:
        """Bytes that were accepted and wait for room."""
        cdef Py_ssize_t rest = 0 if self.rest is None else PyBytes_GET_SIZE(self.rest) - self.rest_at
        return self.staged + rest + getattr(getattr(self._on_writable, "__self__", None), "unsent", 0)

    # ---- room

    @property
    def on_writable(self):
        """Called when room has come back after a message found none, or on an error."""
        return self._on_writable

    @on_writable.setter
    def on_writable(self, callback) -> None:
        self._on_writable = callback
        if callback is not None:
            self.watch()
            self.cq.park()

    @property
    def writable(self) -> int:
        """Largest message, in bytes, that would be accepted now; -1: none."""
        cdef Py_ssize_t room
        if self.ending or self.rest is not None or self.error is not None or self.is_lost():
            return -1
        if self.rings.failover.stage != ON_RDMA:
            return -1 if self.rings.failover.stage != LEFT or self.staged else self.max_message_bytes
        room = <Py_ssize_t>self.rings.tx.free() - self.staged - HEADER
        return room if room >= 0 else -1
