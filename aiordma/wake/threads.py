"""Calls from another thread than the event loop's: refused in asyncio's debug mode, as asyncio refuses them.

A method that does not wait would wake tasks, or touch rings, while the loop does the same. To look at each
call would cost much of what the call itself costs, so only objects that are made while their loop is in debug
mode look: they become instances of a class of the same name whose methods ask first.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .base import Waker


def check_threads(owner: Any, waker: Waker, *names: str) -> None:
    """From now on these methods of ``owner`` raise ``RuntimeError`` in another thread than its loop's, if the
    loop is in debug mode now.

    :param names: methods that do not wait; those that its class lacks are left out.
    """
    if waker.debug:
        kind: Any = type(owner)
        owner.__class__ = _checked(kind, names)
        owner._own_waker = waker


@functools.cache
def _checked(kind: Any, names: tuple[str, ...]) -> Any:
    about = {"__slots__": (), "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    own: Any = type(kind)(kind.__name__, (kind,), {**about, "__doc__": kind.__doc__})
    for name in names:
        if hasattr(kind, name):
            setattr(own, name, _checking(own, name))
    return own


def _checking(own: Any, name: str) -> Any:
    @functools.wraps(getattr(own, name))
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._own_waker.check_thread()
        # Looked up each time: a test may replace the method of the class for a while.
        return getattr(super(own, self), name)(*args, **kwargs)

    return checked
