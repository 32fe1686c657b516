"""Ends of a process at which Python calls no function of `atexit`.

Servers end so: uvicorn raises the signal anew that has stopped it, and workers of multiprocessing leave by
`os._exit()`. Where a report was asked for, it is printed before that. SIGKILL is beyond it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: Signals that stop servers, and end a process that has no handler for them.
_ENDING = {signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2}


def call_before(function: Callable[[], object]) -> None:
    """Call `function` before this process, or one that it forks, ends without `atexit`."""
    own_exit, own_raise, own_kill = os._exit, signal.raise_signal, os.kill

    def ends(number: int) -> bool:
        return number in _ENDING and signal.getsignal(number) is signal.SIG_DFL

    @functools.wraps(own_exit)
    def _exit(status: int) -> Any:
        function()
        own_exit(status)

    @functools.wraps(own_raise)
    def raise_signal(signalnum: int) -> None:
        if ends(signalnum):
            function()
        own_raise(signalnum)

    @functools.wraps(own_kill)
    def kill(pid: int, signalnum: int) -> None:
        if pid == os.getpid() and ends(signalnum):
            function()
        own_kill(pid, signalnum)

    def on_signal(number: int, _frame: object) -> None:
        function()
        signal.signal(number, signal.SIG_DFL)
        own_kill(os.getpid(), number)

    os._exit, signal.raise_signal, os.kill = _exit, raise_signal, kill
    # The program's own handlers come later, and take its place.
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        with contextlib.suppress(ValueError):  # in another thread than the main one
            signal.signal(signal.SIGTERM, on_signal)
