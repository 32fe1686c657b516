"""What the program's code may raise that is no ``Exception``, where code of ours has called it.

A handler or callback may be called in the midst of other work: a batch of completions, a message that is
half taken, the task of somebody else whose operation polls. What it raises must not end that work, nor come
out of an operation that has nothing to do with it: a ``CancelledError`` would look like a cancellation there.
So every such place catches ``BaseException``, does what it does for an error, and hands it to
:func:`contain`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("aiordma.wake")

#: What asyncio lets out of its callbacks and tasks, and out of the loop.
ENDS_PROGRAM = (KeyboardInterrupt, SystemExit)


def contain(error: BaseException) -> bool:
    """Let ``error`` go no further, unless it is to end the program: then the loop raises it in its next turn,
    and this returns True.

    asyncio: as if a callback of the loop had raised it. trio: ``KeyboardInterrupt`` comes out of the main
    task, as each Ctrl-C does there; with ``SystemExit`` the run ends with ``TrioInternalError``, whose cause
    it is.

    :raises BaseException: it is to end the program, and no loop is there to raise it.
    """
    if isinstance(error, ENDS_PROGRAM):
        try:
            _call_soon(error)
        except RuntimeError:
            raise error from None
        return True
    return False


def is_cancellation(error: BaseException) -> bool:
    """Whether the task that runs has got this because it is cancelled; and not, as on asyncio, because it has
    awaited what somebody else has cancelled.
    """
    if not isinstance(error, anyio.get_cancelled_exc_class()):
        return False
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return (task is not None and task.cancelling() > 0) or anyio.current_effective_deadline() == -math.inf
    return True  # on trio there is no other way to get it


def call(callback: Callable[[], object]) -> None:
    """Call what may be code of the program, where something else has to be done after it."""
    try:
        callback()
    except BaseException as error:
        if not contain(error):
            _log.error("a callback failed", exc_info=error)


def _call_soon(error: BaseException) -> None:
    trio: Any = sys.modules.get("trio.lowlevel")
    in_trio_task = getattr(trio, "in_trio_task", None)  # another thread may be importing it
    if in_trio_task is not None and in_trio_task():
        trio.current_trio_token().run_sync_soon(_raise_in_trio, error)
    else:
        asyncio.get_running_loop().call_soon(_raise, error)


def _raise(error: BaseException) -> None:
    raise error


def _raise_in_trio(error: BaseException) -> None:
    # trio's handler of Ctrl-C has raised it in code of the program's that ours has called. The same signal
    # once more, now where trio protects its own code, goes to the main task.
    if isinstance(error, KeyboardInterrupt) and _trio_takes_interrupts():
        signal.raise_signal(signal.SIGINT)
    else:
        raise error


def _trio_takes_interrupts() -> bool:
    handler = getattr(signal.getsignal(signal.SIGINT), "__module__", None) or ""
    return handler.startswith("trio.") and threading.current_thread() is threading.main_thread()
