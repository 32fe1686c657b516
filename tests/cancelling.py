"""Cancel an operation at its n-th await, or after n iterations of the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator


class _Counted:
    """Await a coroutine and call back before its n-th wait."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], n: int, call: Callable[[], None]) -> None:
        self._coroutine, self._n, self._call = coroutine, n, call

    def __await__(self) -> Generator[Any, Any, Any]:
        answer: Any = None
        error: BaseException | None = None
        count = 0
        while True:
            try:
                asked = self._coroutine.send(answer) if error is None else self._coroutine.throw(error)
            except StopIteration as end:
                return end.value
            count += 1
            if count == self._n:
                self._call()
            answer = error = None
            try:
                answer = yield asked
            except BaseException as thrown:
                error = thrown


async def at_await(n: int, operation: Callable[[], Coroutine[Any, Any, Any]]) -> tuple[bool, Any]:
    """Cancel the n-th await of ``operation``; return whether it completed anyway, and its result.

    The first is True for an n larger than the number of its awaits.
    """
    with anyio.CancelScope() as scope:
        return True, await _Counted(operation(), n, scope.cancel)
    return False, None


async def at_turn(n: int, operation: Callable[[], Awaitable[Any]]) -> tuple[bool, Any]:
    """The same, cancelled after n iterations of the loop, so also while tasks of its own run."""
    result: tuple[bool, Any] = (False, None)

    async def run() -> None:
        nonlocal result
        result = True, await operation()
        # A cancellation that comes too late must not lose a result.
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        for _ in range(n):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    return result
