import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
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
    kept: object,
) -> Any: ...
def call_apart(
    loop: asyncio.AbstractEventLoop,
    enter: _TaskSwitch,
    leave: _TaskSwitch,
    running: asyncio.Task[Any] | None,
    function: Callable[..., Any],
    args: Iterable[Any],
    kwargs: Mapping[str, Any],
    context: Context,
) -> Any: ...
