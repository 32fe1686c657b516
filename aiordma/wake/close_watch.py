"""Callbacks for the end of a connection: called once, by the event loop, and removable until then."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from .base import run_guarded
from .escaping import contain

if TYPE_CHECKING:
    from collections.abc import Callable

    from .base import Waker


class CloseCallbacks:
    """:param owner: what the callbacks are called with, kept only while they wait to be called."""

    __slots__ = ("_callbacks", "_reported", "_waker")

    def __init__(self, waker: Waker) -> None:
        self._waker = waker
        self._callbacks: list[Callable[[Any], object]] = []
        self._reported = False

    def add(self, callback: Callable[[Any], object]) -> None:
        """Call it at the end."""
        self._callbacks.append(callback)

    def remove(self, callback: Callable[[Any], object]) -> int:
        """Do not call it; how often it was there."""
        before = len(self._callbacks)
        self._callbacks[:] = [each for each in self._callbacks if each != callback]
        return before - len(self._callbacks)

    def report(self, owner: Any) -> None:
        """It is the end: the loop calls them soon. Those that are added later are called, too."""
        if self._callbacks and not self._reported:
            self._reported = True
            self._waker.call_soon(functools.partial(self._call, owner))

    def _call(self, owner: Any) -> None:
        self._reported = False
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                run_guarded(functools.partial(_call_one, callback, owner))
            except BaseException as error:  # it ends the program, and not the others' being called
                contain(error)


def _call_one(callback: Callable[[Any], object], owner: Any) -> None:
    callback(owner)
