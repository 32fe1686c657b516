"""The tasks of the running event loop, and the lines where they wait. No values of variables."""

from __future__ import annotations

import gc
import itertools
import sys
import types
from typing import TYPE_CHECKING, Any

from .messages import Task

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_TASKS, _MOST_FRAMES = 5000, 64


def tasks() -> Iterator[Task]:
    """Those that have not ended, up to a limit."""
    found = itertools.chain(_asyncio_tasks(), _trio_tasks())
    for name, waits in itertools.islice(found, _MOST_TASKS):
        yield Task(name, list(itertools.islice(_frames(waits), _MOST_FRAMES)))


def _asyncio_tasks() -> Iterator[tuple[str, Any]]:
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return
    try:
        found = asyncio.all_tasks()
    except RuntimeError:  # the loop is trio's
        return
    for task in found:
        yield task.get_name(), task.get_coro()


def _trio_tasks() -> Iterator[tuple[str, Any]]:
    lowlevel = sys.modules.get("trio.lowlevel")
    in_trio_run = getattr(lowlevel, "in_trio_run", None)  # asyncio's programs may have any version of trio
    if lowlevel is None or in_trio_run is None or not in_trio_run():
        return
    left = [lowlevel.current_root_task()]
    while left:
        task = left.pop()
        if task is not None:
            yield task.name, task.coro
            left += [child for nursery in task.child_nurseries for child in nursery.child_tasks]


def _frames(waits: Any) -> Iterator[str]:
    """From the task's own function to where it waits."""
    while waits is not None:
        for name in ("cr_frame", "ag_frame", "gi_frame"):
            frame = getattr(waits, name, None)
            if frame is not None:
                yield f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}"
        waits = _awaited(waits)


def _awaited(waits: Any) -> Any:
    for name in ("cr_await", "ag_await", "gi_yieldfrom"):
        if hasattr(waits, name):
            return getattr(waits, name)
    # The wrappers that "async for" and __await__() create around a coroutine do not show it.
    inner = (types.CoroutineType, types.AsyncGeneratorType)
    return next((found for found in gc.get_referents(waits) if isinstance(found, inner)), None)
