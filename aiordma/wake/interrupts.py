"""Ctrl-C on trio never interrupts this package in the midst of its work, as it never does trio's own.

trio's handler of SIGINT raises KeyboardInterrupt in the running task, at any byte code, unless a frame on the
way there is marked as protected; then the main task gets it, at its next checkpoint
(:func:`trio.lowlevel.enable_ki_protection`). What an operation does for other streams, too, because the
completion that it polled was theirs, must not be left half done. So what programs call is marked, and with it
all that this calls. asyncio needs no such thing: its runner cancels the main task.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_T = TypeVar("_T")

_waiting: list[Any] = []
_protect: Callable[[Any], object] | None = None


def uninterrupted(what: _T) -> _T:
    """Mark a function, or each function that a class defines itself. Costs nothing when they are called."""
    for function in _functions(what):
        if _protect is None:
            _waiting.append(function)  # trio is not there, and need not be
        else:
            _protect(function)
    return what


def protect_with(protect: Callable[[Any], object]) -> None:
    """trio is there: mark what was to be marked, and from now on at once. ``protect`` takes a function."""
    global _protect
    _protect = protect
    while _waiting:
        protect(_waiting.pop())


def _functions(what: Any) -> Iterator[Any]:
    for found in vars(what).values() if isinstance(what, type) else (what,):
        function = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
        if inspect.isfunction(function):
            # The code of a decorator's wrapper belongs to all that it has wrapped.
            yield inspect.unwrap(function)
