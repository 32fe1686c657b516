import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeAlias

_TaskSwitch: TypeAlias = Callable[[asyncio.AbstractEventLoop, Any], None]

def first_step(
    loop: asyncio.AbstractEventLoop,
    enter: _TaskSwitch,
    leave: _TaskSwitch,
    running: asyncio.Task[Any] | None,
    task: asyncio.Task[Any],
    coro: Coroutine[Any, Any, Any],
    context: Context,
    ended: object,
) -> Any: ...
