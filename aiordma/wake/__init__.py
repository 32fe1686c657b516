"""Station 7: from "the completion channel is readable" to "a waiter resumes", on asyncio, uvloop and trio.

The rest of the package never imports an event loop; it asks :func:`current` for the
:class:`~aiordma.wake.base.Waker` of the loop it runs in.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import Waker

__all__ = ["current", "preload"]


def current() -> Waker:
    """The waker of the running event loop; always the same object for one loop.

    :raises RuntimeError: no event loop runs in this thread.
    """
    # A trio task is looked for first: in guest mode a host asyncio loop runs in the same thread. No
    # import on the way of a loop that has its waker: it takes a microsecond, and a connect asks three times.
    # Another thread may be importing trio, and asyncio's programs may have any version of it.
    in_trio_task = getattr(sys.modules.get("trio.lowlevel"), "in_trio_task", None)
    if in_trio_task is not None and in_trio_task():
        from . import _trio

        return _trio.current()
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "aiordma needs a running event loop (asyncio, uvloop or trio): call this from a coroutine"
        ) from None
    try:
        return loop._aiordma_waker  # type: ignore[attr-defined, no-any-return]
    except AttributeError:
        from . import _asyncio

        return _asyncio.new_waker(loop)


def preload() -> None:
    """For modules that need a waker later: load it before a loop runs, which would stand still for 10 ms.

    It is asyncio's, unless the program has loaded trio.
    """
    if "trio" not in sys.modules:
        from . import _asyncio  # noqa: F401
