"""Where an object was created: recorded on request, for reports about objects that are not given back."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import CodeType, FrameType

Origin = tuple[tuple["CodeType", int], ...]
"""Innermost first: what runs, and its line."""

#: This package.
_OWN = os.path.dirname(os.path.dirname(__file__)) + "/"
#: What is between a program and its coroutines.
_MACHINERY = frozenset({"asyncio", "anyio", "trio", "uvloop", "contextlib", "selectors", "threading"})

_frames = 0


def record(frames: int) -> None:
    """Record so many frames of what is created from now on. 0: none."""
    global _frames
    _frames = frames


def recorded() -> int:
    """How many frames are recorded now."""
    return _frames


def here() -> Origin:
    """The program's frames above the caller. Empty unless they are recorded, or if there are none."""
    if not _frames:
        return ()
    found: list[tuple[CodeType, int]] = []
    task = _task_frame()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if task is not None and (frame is task or name.partition(".")[0] == "asyncio"):
            # Between a coroutine and one that it awaits, Python may lose the frames when an exception was
            # thrown into the inner one: that of the task is known by itself.
            _add(found, task)
            task = None
        elif frame is not task:
            _add(found, frame)
        frame = frame.f_back
    if task is not None:  # uvloop has no frames of its own
        _add(found, task)
    return tuple(found[:_frames])


def _task_frame() -> FrameType | None:
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return None
    try:
        task = asyncio.current_task()
    except RuntimeError:  # the loop is trio's
        return None
    return None if task is None else getattr(task.get_coro(), "cr_frame", None)


def _add(found: list[tuple[CodeType, int]], frame: FrameType) -> None:
    code, name = frame.f_code, frame.f_globals.get("__name__", "")
    if not code.co_filename.startswith(_OWN) and name.partition(".")[0] not in _MACHINERY:
        found.append((code, frame.f_lineno))


def shown(origin: Origin) -> list[str]:
    """``file:line function``, innermost first."""
    return [f"{code.co_filename}:{line} {code.co_qualname}" for code, line in origin]
