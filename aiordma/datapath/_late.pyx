# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""What a blocked event loop has deferred: a thread announces in its place, some milliseconds later.

An engine announces small writes together, at the end of the loop's turn. Where a callback computes, or sleeps, there is
no such end for seconds, while TCP would have delivered each write. So one thread of the process looks every 5 ms at which
engine has work that was there when it looked before, takes Python's lock, and has that engine announce it. It needs that
lock: where a C extension computes and keeps it, nothing goes out before it is given up.

The loop pays two stores for a turn with deferred work. The thread ends when nothing was deferred for a second, and is
started again by what is deferred next.

What the thread calls runs no code of the program, and gives up Python's lock nowhere: for the loop's thread it happens at
one moment, in the midst of what the program does. It posts, and nothing else: what fails is left to the loop's next turn.

Who may touch what
------------------
Everything is changed with Python's lock only; what is read without it is marked "both", and atomic. The loop's thread
gives the lock up where Python code runs (a callback, a collection), and where it says so (``with nogil``). At each of these
places the thread may post, so each must leave what it would read whole, or bar it:

* ``_waiting``, ``_begun``: both. The thread acts on nothing that it has read before it has looked again, with the lock.
* ``_owners``: weak. A loop that was dropped is no owner any more.
* ``CompletionPoller.dirty``: filled before ``_waiting`` tells of it. An owner leaves it (``detach()``) before its queue pair
  is destroyed, and all leave it when the poller is closed (``closed``).
* ``outside``: the loop's thread is posting without the lock, and what it posts is not counted yet.
* ``flushing``, ``posting``: it is amid a queue of flows, or amid what was staged, and has called something.
* ``is_quiet()``, ``hook``: posting for this flow, or on this link, would call Python.
* ``helping``: nothing that is reached from here may call the loop (``schedule()``), poll, or fail a link (``fail_owner()``).

``tests/datapath/test_late_model.py`` has this as a model, in which each of these can be taken away.
"""
from libc.stdint cimport uint64_t
from posix.time cimport nanosleep, timespec

import _thread
import os
from weakref import ref

cdef extern from "Python.h":
    int PyGC_Disable()
    int PyGC_Enable()

cdef extern from * nogil:
    """
    #define aio_seen(at) __atomic_load_n(at, __ATOMIC_RELAXED)
    #define aio_show(at, value) __atomic_store_n(at, value, __ATOMIC_RELAXED)
    """
    uint64_t aio_seen(uint64_t *at)
    void aio_show(uint64_t *at, uint64_t value)

cdef enum:
    SLOTS = 64              # engines that are looked after at once
    PERIOD_NS = 5_000_000   # Python's own threads wait as long for its lock
    IDLE_PERIODS = 200      # without any deferred work, until the thread ends
    STARTS_AGAIN = 1000     # deferrals until the next try where no thread could be started

# By slot: the number of the deferred work; 0: none.
cdef uint64_t _waiting[SLOTS]
cdef uint64_t _begun = 0
cdef uint64_t _start_at = 0, _helps = 0
cdef uint64_t _period_ns = PERIOD_NS
cdef bint _running = False
cdef list _owners = [None] * SLOTS          # weak references


cdef class LateWork:
    def __cinit__(self):
        self.late_slot = -1

    cdef void work_waits(self):
        global _begun
        if self.late_slot < 0:
            self.late_slot = _free_slot(self)
            if self.late_slot < 0:
                return
        aio_show(&_begun, _begun + 1)
        aio_show(&_waiting[self.late_slot], _begun)
        if not _running and _begun >= _start_at:
            _start()

    cdef void work_done(self) noexcept:
        if self.late_slot >= 0:
            aio_show(&_waiting[self.late_slot], 0)

    cdef void no_more_work(self):
        self.work_done()
        if self.late_slot >= 0:
            _owners[self.late_slot] = None
            self.late_slot = -1

    cdef bint help(self) except -1:
        """In the thread: post what waits. False: not now."""
        raise NotImplementedError


cdef int _free_slot(LateWork owner):
    cdef int slot
    for slot in range(SLOTS):
        if _owners[slot] is None or _owners[slot]() is None:
            _owners[slot] = ref(owner)
            return slot
    return -1


cdef void _start():
    global _running, _start_at
    _running = True             # it takes this back itself, perhaps before it is seen to have begun
    try:
        _thread.start_new_thread(help_late, ())
    except (RuntimeError, MemoryError):         # a limit, or the interpreter ends
        _running = False
        _start_at = _begun + STARTS_AGAIN


def help_late():
    """The thread."""
    global _running
    cdef uint64_t before[SLOTS]
    cdef uint64_t helped[SLOTS]
    cdef uint64_t seen = 0, number
    cdef int slot, idle = 0
    cdef timespec period
    period.tv_sec = 0
    for slot in range(SLOTS):
        before[slot] = helped[slot] = 0
    while True:
        with nogil:
            while idle < IDLE_PERIODS:
                period.tv_nsec = <long>aio_seen(&_period_ns)
                nanosleep(&period, NULL)
                number = aio_seen(&_begun)
                idle = idle + 1 if number == seen else 0
                seen = number
                for slot in range(SLOTS):
                    number = aio_seen(&_waiting[slot])
                    if number != 0 and number == before[slot] and number != helped[slot]:
                        with gil:
                            if _help(slot, number):
                                helped[slot] = number
                            else:
                                idle = 0
                    before[slot] = number
        if _begun == seen:      # with Python's lock: nothing is deferred meanwhile
            _running = False
            return
        idle = 0


cdef bint _help(int slot, uint64_t number):
    """Whether nothing is left to be done for this work."""
    global _helps
    cdef LateWork owner
    cdef bint collects
    if _waiting[slot] != number:
        return True
    found = _owners[slot]
    owner = found() if found is not None else None
    if owner is None:
        return True
    _helps += 1
    # A collection may run code, and give up Python's lock.
    collects = PyGC_Disable()
    try:
        return owner.help()
    except Exception:
        return True             # the loop's turn meets it, too
    finally:
        if collects:
            PyGC_Enable()


def _forget():
    """In a forked child: it has no such thread, and what waited is its parent's."""
    global _running
    cdef int slot
    _running = False
    for slot in range(SLOTS):
        aio_show(&_waiting[slot], 0)


def set_period_ns(uint64_t period_ns) -> None:
    """For tests: how often the thread looks (0: the usual)."""
    aio_show(&_period_ns, period_ns if period_ns else PERIOD_NS)


def counts() -> tuple[int, bool]:
    """For tests: how often an engine was helped, and whether the thread runs."""
    return _helps, _running


os.register_at_fork(after_in_child=_forget)
