"""Ends of a process at which Python calls no function of `atexit`.

Servers end so: uvicorn raises the signal anew that has stopped it, and workers of multiprocessing leave by
`os._exit()`. Where a report was asked for, it is printed before that. SIGKILL is beyond it.

The process is to end, whatever becomes of the report: a supervisor that reads nothing more, or one that
asked for the end in the middle of what the program was writing, does not keep it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: Signals that stop servers, and end a process that has no handler for them.
_ENDING = {signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2}
#: For so long, in all, the reader of standard error may let an end wait.
_PATIENCE_S = 1.0

#: Called in their order. What calls them is put into place with the first.
_functions: list[Callable[[], object]] = []


def call_before(function: Callable[[], object]) -> None:
    """Call `function` before this process, or one that it forks, ends without `atexit`."""
    _functions.append(function)
    if len(_functions) == 1:
        _watch()


def tell(text: str) -> None:
    """Write on standard error what its reader takes in a moment; the rest is lost.

    By its descriptor: the program may have been interrupted in the middle of the stream's own `write()`.
    """
    if sys.stderr is None:
        return
    try:
        descriptor = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # the program's own, in memory for example
        sys.stderr.write(text)
        return
    data = text.encode(errors="backslashreplace")
    until = time.monotonic() + _PATIENCE_S
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    while data and poll.poll(max(0.0, until - time.monotonic()) * 1000):
        # A pipe that has room takes so much without waiting.
        data = data[os.write(descriptor, data[: select.PIPE_BUF]) :]


def _call() -> None:
    for function in _functions:
        with contextlib.suppress(Exception):  # an end is not the moment to fail
            function()


def _watch() -> None:
    own_exit, own_raise, own_kill = os._exit, signal.raise_signal, os.kill

    def ends(number: int) -> bool:
        return number in _ENDING and signal.getsignal(number) is signal.SIG_DFL

    @functools.wraps(own_exit)
    def _exit(status: int) -> Any:
        _call()
        own_exit(status)

    @functools.wraps(own_raise)
    def raise_signal(signalnum: int) -> None:
        if ends(signalnum):
            _call()
        own_raise(signalnum)

    @functools.wraps(own_kill)
    def kill(pid: int, signalnum: int) -> None:
        if pid == os.getpid() and ends(signalnum):
            _call()
        own_kill(pid, signalnum)

    def on_signal(number: int, _frame: object) -> None:
        # At once: the next one ends this process even if something keeps this handler.
        signal.signal(number, signal.SIG_DFL)
        try:
            _call()
        finally:
            own_kill(os.getpid(), number)

    os._exit, signal.raise_signal, os.kill = _exit, raise_signal, kill
    # The program's own handlers come later, and take its place.
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        with contextlib.suppress(ValueError):  # in another thread than the main one
            signal.signal(signal.SIGTERM, on_signal)
