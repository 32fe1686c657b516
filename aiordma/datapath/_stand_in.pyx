# cython: language_level=3, boundscheck=False, wraparound=False
"""A thread that answers Linux kernels on their links while the event loop does not poll.

Linux gives two seconds for the answers to some of its requests, and takes the link away if none comes; a program may
keep its event loop busy for longer. What the thread does, and how it shares the completion queue with the loop, is
in ``_stand_in.h``. It needs no Python, so it goes on while the interpreter is held, too.
"""
from libc.stdint cimport uintptr_t

from .._cq cimport CompletionPoller, aio_stand_in_end


cdef class StandIn:
    """One per engine that has such links.

    :param period_ms: how often the thread looks whether the loop has polled since. It answers after twice that.
    :raises OSError: there are no descriptors for it.
    """

    def __cinit__(self, CompletionPoller poller not None, int period_ms):
        cdef int rc
        self.poller, self.keep = poller, poller.keep
        self.links = set()
        rc = aio_stand_in_open(&self.state, poller.cq, period_ms)
        if rc:
            raise OSError(rc, "no stand-in for the event loop")

    def __del__(self):
        # Before the collector clears anything: the thread uses what the others hold.
        with nogil:
            aio_stand_in_end(&self.state)

    def __dealloc__(self):
        aio_stand_in_close(&self.state)

    @property
    def fd(self) -> int:
        """Readable when the thread has kept something for the loop, which calls :meth:`on_readable` then."""
        return self.state.event

    @property
    def answered(self) -> int:
        """Requests that the thread has answered."""
        return aio_stand_in_answered(&self.state)

    @property
    def taken(self) -> int:
        """Completions that the thread has polled."""
        return aio_stand_in_taken(&self.state)

    def on_readable(self) -> None:
        """Have the loop poll soon."""
        aio_stand_in_heard(&self.state)
        self.poller.schedule()

    def begin(self) -> None:
        """Begin with the thread. Idempotent. :raises OSError: there is none."""
        cdef int rc = aio_stand_in_begin(&self.state)
        if rc:
            raise OSError(rc, "no thread that stands in for the event loop")
        self.poller.set_stand_in(&self.state, self)

    def end(self) -> None:
        """End the thread. What it has kept comes with the loop's next polls. Idempotent."""
        with nogil:
            aio_stand_in_end(&self.state)
        if aio_stand_in_kept(&self.state):
            self.poller.schedule()
        elif self.poller.stand_in == &self.state:
            self.poller.set_stand_in(NULL, None)

    cdef int add(self, object owner, aio_stood_for *link) except -1:
        if aio_stand_in_add(&self.state, link):
            raise MemoryError
        self.links.add(owner)
        return 0

    cdef int remove(self, object owner, aio_stood_for *link) except -1:
        aio_stand_in_remove(&self.state, link)
        self.links.discard(owner)
        return 0
