"""Work that would block an event loop, done in a thread beside it, with any number of tasks that wait for it.

The work belongs to the loop and not to the tasks: one that is cancelled only stops waiting. What the work has
made is handed over in the loop, or discarded if the loop ends before that.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import ref

from .base import run_guarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from .base import Waiter, Waker

T = TypeVar("T")
V = TypeVar("V")

#: A fork waits this long for threads that are at work.
_FORK_SECONDS = 10.0
#: Those that are not gone yet. While they run, :mod:`threading` has them; after that, programs that count
#: objects of threads, as CPython's own tests do, must not find them here.
_threads: set[ref[threading.Thread]] = set()


class _ShortTurns:
    """While such a thread works, threads take turns with Python's lock more often.

    Imports are computation: a loop that has something to do would wait Python's usual 5 ms for the lock,
    again and again. The interval is the process's; what a program sets meanwhile stays.
    """

    SECONDS = 0.0005

    def __init__(self) -> None:
        self._lock, self._threads, self._before = threading.Lock(), 0, 0.0

    def __enter__(self) -> None:
        with self._lock:
            self._threads += 1
            if self._threads == 1:
                self._before = sys.getswitchinterval()
                if self._before > self.SECONDS:
                    sys.setswitchinterval(self.SECONDS)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._threads -= 1
            if self._threads == 0 and sys.getswitchinterval() == self.SECONDS:
                sys.setswitchinterval(self._before)

    def forget(self) -> None:
        """In a forked child, which has none of these threads, but perhaps their interval."""
        if self._threads and sys.getswitchinterval() == self.SECONDS:
            sys.setswitchinterval(self._before)


_short_turns = _ShortTurns()


class LoopEndedError(RuntimeError):
    """The event loop ended while the work was done."""


class Beside(Generic[T, V]):
    """Begins at once.

    :param work: called in the thread.
    :param adopt: called in the loop with what ``work`` returned; it makes the :attr:`value`.
    :param discard: called instead if the loop has ended: in a thread, or where the loop is closed or dropped.
    :param done: called in the loop when all is over, also after an error, before any task goes on.
    :param after: called in the thread at last, also after an error: what nothing waits for.
    """

    #: What ``adopt`` returned.
    value: V

    def __init__(
        self,
        waker: Waker,
        work: Callable[[], T],
        adopt: Callable[[T], V],
        *,
        discard: Callable[[T], None] = lambda _made: None,
        done: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self._waker, self._work, self._adopt, self._discard, self._done = waker, work, adopt, discard, done
        #: Not adopted yet. Taken by pop(), which only one thread succeeds with.
        self._made: list[T] = []
        self._waiters: list[Waiter] = []
        self._over = self._loop_has_ended = False
        #: What went wrong.
        self.error: BaseException | None = None
        self._release = waker.clock.hold()
        waker.bind(self)
        start_thread(self._run, after)

    async def wait(self) -> V:
        """The :attr:`value`, as soon as it is there.

        :raises BaseException: what ``work`` or ``adopt`` raised.
        :raises LoopEndedError: the loop ends.
        """
        while not self._over:
            waiter = self._waker.new_waiter()
            self._waiters.append(waiter)
            try:
                await waiter.wait()
            finally:
                self._waiters.remove(waiter)
        if self.error is not None:
            raise self.error
        return self.value

    def _run(self) -> None:
        try:
            self._made.append(self._work())
        except BaseException as error:
            self.error = error
        # Only now is this looked at: the end of the loop and this, whichever comes later discards it.
        if self._loop_has_ended or not self._waker.call_from_anywhere(self._finish):
            self._let_go()

    def _finish(self) -> None:
        if self._over:  # the loop ends, and lets its last callbacks run
            return
        if self._made:
            try:
                self.value = self._adopt(self._made.pop())
            except BaseException as error:
                self.error = error
        self._end()

    def _end(self) -> None:
        self._over = True
        self._release()
        run_guarded(self._done)
        for waiter in self._waiters:
            run_guarded(waiter.set)

    def loop_ended(self) -> None:
        """See :class:`aiordma.wake.base.LoopBound`."""
        self._loop_has_ended = True
        # Discarding may block as making does. Where no loop runs, no thread may be begun: see Endpoint.
        self._let_go(start_thread if self._is_in_loop() else run_guarded)
        if not self._over:
            self.error = LoopEndedError("the event loop ended meanwhile")
            self._end()

    def __del__(self) -> None:
        # The loop was dropped together with this: the weak references by which this would learn of it are
        # cleared before finalizers run.
        self._let_go()

    def _is_in_loop(self) -> bool:
        try:
            self._waker.check_loop()
        except RuntimeError:
            return False
        return True

    def _let_go(self, run: Callable[[Callable[[], None]], None] = run_guarded) -> None:
        while self._made:
            try:
                made = self._made.pop()
            except IndexError:  # the other thread was faster
                return
            run(partial(run_guarded, partial(self._discard, made)))


def start_thread(work: Callable[[], None], after: Callable[[], None] = lambda: None) -> None:
    """Do it in a thread that a fork waits for; here, if there are no threads left.

    :param after: done then; what the work belongs to, such as a loop, is not kept for it.
    """
    works = [work]

    def run() -> None:
        with _short_turns:
            works.pop()()
            run_guarded(after)

    thread = threading.Thread(target=run, name="aiordma opening")
    _threads.add(ref(thread, _threads.discard))
    try:
        thread.start()
    except RuntimeError:
        run()


def wait_for_threads() -> None:
    """Until those of :func:`start_thread` are gone, 10 s at most each.

    A fork does: the child would have the locks that such a thread holds, as those of imports, and none to
    free them.
    """
    for reference in tuple(_threads):
        thread = reference()
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            thread.join(_FORK_SECONDS)


def _after_fork() -> None:
    global _short_turns
    _short_turns.forget()
    _threads.clear()
    _short_turns = _ShortTurns()


os.register_at_fork(before=wait_for_threads, after_in_child=_after_fork)
