# cython: language_level=3
"""Waiting in one task of an asyncio loop, without a future for each wait and mostly without a turn of the loop.

A future that is done lets its task go on in the loop's next turn: a handle, a look at all file descriptors, and the
work around both. That costs asyncio 4 us of a wake-up, and uvloop 1. A :class:`TaskWaiter` takes the place of the
future, again and again, by the protocol of future-like objects (``asyncio.isfuture()``): the task itself yields it to
the loop, and leaves its wake-up function with it. When a file descriptor's callback has set exactly one waiter and
nothing else is ready to run, that function is called right behind the callback (:meth:`WakeUps.watched`). Otherwise
it goes through the loop's queue, as always: tasks that wake up together must see each other there, because polling
and batching decide by that queue.
"""
cimport cython
from cpython.contextvars cimport PyContext_Enter, PyContext_Exit
from cpython.dict cimport PyDict_GetItemWithError
from libc.math cimport INFINITY

from asyncio import CancelledError, _get_running_loop

from .ending import refuse_other_loop


cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident() nogil


@cython.final
cdef class WakeUps:
    """What the waiters of one loop share.

    :param thread: of the loop.
    :param ready: the loop's queue of callbacks.
    :param tasks: asyncio's table of running tasks by loop, where that is cheaper to ask than the running loop.
    """
    cdef object loop, ready
    cdef dict tasks
    cdef unsigned long thread
    cdef bint inside                # a file descriptor's callback runs
    cdef bint several               # it has set more than one waiter
    cdef TaskWaiter found           # the first

    def __init__(self, loop, unsigned long thread, ready not None, dict tasks):
        self.loop, self.thread, self.ready, self.tasks = loop, thread, ready, tasks

    def watched(self, callback) -> WatchCallback:
        """``callback`` for a file descriptor; the task that it wakes runs at once, if it is the only one."""
        return WatchCallback(self, callback)

    def new_waiter(self) -> TaskWaiter:
        return TaskWaiter(self)

    cdef int check_loop(self) except -1:
        if PyThread_get_thread_ident() == self.thread and self.tasks is not None:
            # A task of this loop runs in its thread. (Asking for the running loop costs Python 3.11 a system call.)
            if PyDict_GetItemWithError(self.tasks, self.loop) != NULL:
                return 0
        if _get_running_loop() is not self.loop:
            refuse_other_loop(self.loop)
        return 0


@cython.final
cdef class WatchCallback:
    cdef WakeUps wakeups
    cdef object callback

    def __cinit__(self, WakeUps wakeups, callback):
        self.wakeups, self.callback = wakeups, callback

    def __call__(self):
        cdef WakeUps wakeups = self.wakeups
        cdef TaskWaiter found
        if wakeups.inside:      # a loop inside the loop
            self.callback()
            return
        wakeups.inside = True
        try:
            self.callback()
        except BaseException:
            wakeups.inside = wakeups.several = False
            found, wakeups.found = wakeups.found, None
            if found is not None:
                found.schedule()
            raise
        wakeups.inside = wakeups.several = False
        found = wakeups.found
        if found is not None:
            wakeups.found = None
            if wakeups.ready:
                found.schedule()
            else:
                found.resume()

    def __repr__(self) -> str:
        return repr(self.callback)


@cython.final
cdef class TaskWaiter:
    """See :class:`aiordma.wake.base.Waiter`."""
    cdef WakeUps wakeups
    cdef object callback, context   # the wake-up function of the task that waits, and its context
    cdef object message             # of the cancellation
    cdef object error               # what a set_exception() has given
    cdef bint is_set, waiting, expired, is_cancelled
    cdef bint was_set               # the last wait() ended because of a set()
    cdef public bint _asyncio_future_blocking

    def __init__(self, WakeUps wakeups not None):
        self.wakeups = wakeups

    # ---- the waiter

    def set(self) -> None:
        self.is_set = True
        if self.callback is not None:
            self.wake()

    def clear(self) -> None:
        self.is_set = False

    def wait(self):
        if self.callback is not None:   # its task would never be told
            raise RuntimeError("two tasks wait at one waiter")
        self.waiting = self.expired = self.is_cancelled = False
        self.callback = self.context = self.error = None
        if not self.is_set:
            self.wakeups.check_loop()
        return self

    async def wait_until(self, double deadline) -> bool:
        if self.is_set or deadline == INFINITY:
            await self.wait()
            return True
        timer = self.wakeups.loop.call_at(deadline, self.expire)
        try:
            await self.wait()
        finally:
            timer.cancel()
        return self.was_set

    def expire(self) -> None:
        """Let the task go on without a set()."""
        self.expired = True
        if self.callback is not None:
            self.wake()

    cdef int wake(self) except -1:
        cdef WakeUps wakeups = self.wakeups
        if wakeups.inside:
            if wakeups.found is self:
                return 0
            if wakeups.found is None and not wakeups.several:
                wakeups.found = self
                return 0
            wakeups.several = True
            if wakeups.found is not None:
                wakeups.found.schedule()
                wakeups.found = None
        return self.schedule()

    cdef int schedule(self) except -1:
        """Have the task go on in the next turn of the loop."""
        callback, self.callback = self.callback, None
        context, self.context = self.context, None
        if callback is None:
            return 0
        try:
            self.wakeups.loop.call_soon(callback, self, context=context)
        except RuntimeError:
            if not self.wakeups.loop.is_closed():
                raise
        return 0

    cdef int resume(self) except -1:
        """Have it go on now. No task runs."""
        if self.context is None:
            return self.schedule()
        callback, self.callback = self.callback, None
        context, self.context = self.context, None
        if callback is None:
            return 0
        PyContext_Enter(context)
        try:
            callback(self)
        finally:
            PyContext_Exit(context)
        return 0

    # ---- what ``await`` sees

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        if self.waiting or self.is_set:
            self.waiting = False
            self.was_set, self.is_set = self.is_set, False
            raise StopIteration
        self.waiting = self._asyncio_future_blocking = True
        return self

    # ---- what a task sees of what it waits for

    def get_loop(self):
        return self.wakeups.loop

    def add_done_callback(self, callback, *, context=None) -> None:
        if self.callback is not None:
            raise RuntimeError("two tasks wait at one waiter")
        self.callback, self.context = callback, context
        if self.done():
            self.schedule()

    def done(self) -> bool:
        return self.is_set or self.expired or self.is_cancelled

    def cancelled(self) -> bool:
        return self.is_cancelled

    def cancel(self, msg=None) -> bool:
        if not self.waiting or self.done():
            return False
        self.is_cancelled, self.message = True, msg
        self.schedule()
        return True

    # ---- and what asyncio's StreamReader does with it

    def set_result(self, result) -> None:
        self.set()

    def set_exception(self, exception) -> None:
        self.error = exception
        self.set()

    def result(self) -> None:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        if self.is_cancelled:
            message, self.message = self.message, None
            raise CancelledError() if message is None else CancelledError(message)
