# cython: language_level=3
"""The clock of an event loop, read without Python where it is the system's (see `clock.py`)."""
from libc.stdint cimport int64_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

import logging

_log = logging.getLogger("aiordma.wake")


cdef class Clock:
    """The system's monotonic clock, the one of ``time.monotonic_ns()``."""

    def __cinit__(self):
        self.real = True

    cdef int64_t ns(self) noexcept nogil:
        cdef timespec now
        clock_gettime(CLOCK_MONOTONIC, &now)
        return <int64_t>now.tv_sec * 1_000_000_000 + now.tv_nsec

    def now_ns(self) -> int:
        """Nanoseconds; they never decrease."""
        return self.ns()

    def hold(self):
        """The loop waits for a thread. Call what is returned, in the loop, when the thread is done."""
        return _nothing


def _nothing():
    pass


cdef class GivenClock(Clock):
    """A clock of somebody else's, a test's for example: it may stand still.

    :param read: returns seconds.
    :param hold: see :meth:`Clock.hold`; None: the clock goes on while threads work.
    """

    def __init__(self, read, hold=None):
        self.read = read
        self.holder = hold
        self.real = False

    cdef int64_t ns(self) noexcept nogil:
        with gil:
            return self.ask()

    def hold(self):
        return _nothing if self.holder is None else self.holder()

    cdef int64_t ask(self) noexcept:
        # The data path cannot fail here, so a clock that does stands still.
        try:
            self.last = max(self.last, <int64_t>(<double>self.read() * 1e9))
        except Exception:
            _log.exception("the clock of the event loop failed")
        return self.last
