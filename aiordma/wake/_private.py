"""The private interfaces of asyncio, uvloop and anyio that save time where tasks wait and are woken.

None of them is needed. For each one this module states what it relies on and which public interface replaces
it; it checks that the private one has the expected shape, and leaves it alone when it has not.
``aiordma.borrowed`` has the table of all that aiordma uses, and the switch.
"""

from __future__ import annotations

import asyncio
import asyncio.tasks
import gc
import sys
from _thread import get_ident
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from ..borrowed import ENABLED, shapes

try:
    from ._cancelled import CancelCheck
    from ._waiter import WakeUps
except ImportError:
    # Built for another Python. Connections run on TCP then, and say so: they must get that far.
    _compiled = False
else:
    _compiled = True

if TYPE_CHECKING:
    from collections.abc import Callable

    TaskSwitch = Callable[[asyncio.AbstractEventLoop, Any], None]


# ---- the running task ------------------------------------------------------------------------------------
#
# Relies on: asyncio.tasks._current_tasks, a dict from loop to task (before Python 3.12).
# Public: asyncio.current_task(loop), which before 3.12 is a Python function around that dict. From 3.12 on it
# is as fast, and nothing private is used.


def _table_of_running() -> dict[Any, Any] | None:
    tasks = getattr(asyncio.tasks, "_current_tasks", None)
    return tasks if ENABLED and sys.version_info < (3, 12) and type(tasks) is dict else None


_running_tasks = _table_of_running()
current_task: Callable[[asyncio.AbstractEventLoop], asyncio.Task[Any] | None] = (
    asyncio.current_task if _running_tasks is None else _running_tasks.get
)


# ---- the running loop ------------------------------------------------------------------------------------
#
# Relies on: asyncio._get_running_loop(), which asyncio offers to event loops, and which says None where none
# runs.
# Public: asyncio.get_running_loop(), which raises RuntimeError there.


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


running_loop: Callable[[], asyncio.AbstractEventLoop | None] = (
    asyncio._get_running_loop if ENABLED and not shapes.running_loop() else _running_loop
)


# ---- pending cancellations -------------------------------------------------------------------------------
#
# Relies on, each for itself:
# * Task._must_cancel of asyncio's C tasks: true between Task.cancel() and the next step of a task that was
#   not waiting. There is no public interface; without it a task that cancels itself gets the exception when
#   it really waits or its share is used up, not in its next operation.
# * anyio's table of task states (a WeakKeyDictionary) with the innermost cancel scope of each task, and three
#   fields of CancelScope: 0.1 us. Public: anyio.current_effective_deadline(), 0.6 us.


def _anyio_task_states() -> dict[Any, Any] | None:
    try:
        from anyio._backends._asyncio import _task_states as table
    except ImportError:
        return None
    return None if shapes.anyio_scopes() else table.data  # type: ignore[attr-defined]


_must_cancel_known = ENABLED and not shapes.must_cancel()
_task_states = _anyio_task_states() if ENABLED else None


class _OfLoop(Protocol):
    _loop: asyncio.AbstractEventLoop
    thread: int

    def check_loop(self) -> None: ...


def _cancel_requested_by_deadline(waker: _OfLoop) -> bool:
    task = current_task(waker._loop)
    # The loop's task may run in its own thread at the same time as this call in another one.
    if task is None or get_ident() != waker.thread:
        waker.check_loop()
    if task is None:
        return False
    if _must_cancel_known and task._must_cancel:  # type: ignore[attr-defined]
        return True
    return anyio.current_effective_deadline() == float("-inf")


def cancel_checks(waker: _OfLoop) -> tuple[CancelCheck | None, Callable[[], bool]]:
    """What tell whether the running task of a loop has been cancelled and has not received that yet.

    The first is faster, and is not there everywhere.
    """
    check = None
    if _compiled and _must_cancel_known and _task_states is not None:
        check = CancelCheck(waker._loop, waker.thread, _running_tasks, current_task, _task_states)
    return check, partial(_cancel_requested_by_deadline, waker)


# ---- the loop's queue of callbacks -----------------------------------------------------------------------
#
# Relies on: a deque to which call_soon() appends handles. asyncio's loops keep it in the attribute _ready;
# in uvloop only the garbage collector shows it (gc.get_referents). A candidate must prove itself: a callback
# that was just scheduled has to appear in it.
# Public: there is none. Without it nothing is known about other tasks, and operations poll less.


def ready_queue(loop: asyncio.AbstractEventLoop) -> deque[Any] | None:
    """The loop's queue of callbacks that are ready to run, which shows whether others want to run."""
    if not ENABLED:
        return None
    queue = getattr(loop, "_ready", None)
    candidates = [o for o in (queue, *gc.get_referents(loop)) if isinstance(o, deque)]
    handle = loop.call_soon(_nothing)
    try:
        return next((c for c in candidates if c and c[-1] is handle), None)
    finally:
        handle.cancel()


def _nothing() -> None:
    pass


# ---- waking a task right behind the callback that has woken it -------------------------------------------
#
# Relies on: a task that gets a future-like object leaves a callback with it that runs the task's next step,
# and does not mind who calls that, as long as no other task runs. (asyncio documents future-like objects, and
# calls these callbacks from its queue.)
# Public: a future for each wait.


def new_wake_ups(loop: asyncio.AbstractEventLoop, thread: int, ready: deque[Any] | None) -> WakeUps | None:
    """What the waiters of a loop share; None: they wait with futures."""
    if not _compiled or not ENABLED or ready is None:
        return None
    return WakeUps(loop, thread, ready, _running_tasks)


# ---- running a step as another task ----------------------------------------------------------------------
#
# Relies on: asyncio.tasks._enter_task and _leave_task, which set what asyncio.current_task() returns. Python
# documents them for third-party tasks ("Extending"), but with a leading underscore.
# Public: a new asyncio.Task for each coroutine.


def task_switch(loop: asyncio.AbstractEventLoop) -> tuple[TaskSwitch, TaskSwitch] | None:
    """The functions that enter and leave a task, proved on ``loop``, which is running; None: do without."""
    enter = getattr(asyncio.tasks, "_enter_task", None)
    leave = getattr(asyncio.tasks, "_leave_task", None)
    if not ENABLED or enter is None or leave is None:
        return None
    running = asyncio.current_task(loop)
    probe = object()
    try:
        if running is not None:
            leave(loop, running)
        try:
            enter(loop, probe)
            entered: object = asyncio.current_task(loop)
            leave(loop, probe)
            left = asyncio.current_task(loop)
        finally:
            if running is not None:
                enter(loop, running)
    except (RuntimeError, TypeError):
        return None
    return (enter, leave) if entered is probe and left is None else None
