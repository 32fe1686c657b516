"""What ``connect()`` and ``listen()`` return: ``await`` it, or open it with ``async with``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from ..wake.origin import here, recorded
from .hints import NotOpenYet

if TYPE_CHECKING:
    from types import TracebackType

    from ..wake.origin import Origin

P = ParamSpec("P")
R = TypeVar("R", bound="AbstractAsyncContextManager[Any, Any]")


class Opening(Coroutine[Any, Any, R], AbstractAsyncContextManager[R, None], Generic[R]):
    """Something that is about to be opened: ``await`` gives it, and ``async with`` also closes it.

    It is a coroutine for everything that wants one (``asyncio.create_task()``, task groups), and like one it
    is used once; one that is never used is reported as "never awaited".
    """

    __slots__ = ("_coroutine", "_opened")

    if not TYPE_CHECKING:
        # What newcomers try when they have forgotten the await.
        path, fallback_reason, receive, aclose = NotOpenYet(), NotOpenYet(), NotOpenYet(), NotOpenYet()
        accept, serve, port, addresses = NotOpenYet(), NotOpenYet(), NotOpenYet(), NotOpenYet()

    def __init__(self, coroutine: Coroutine[Any, Any, R]) -> None:
        self._coroutine: Any = coroutine

    def __await__(self) -> Generator[Any, Any, R]:
        awaitable: Generator[Any, Any, R] = self._coroutine.__await__()
        return awaitable

    def send(self, value: Any) -> Any:
        if value is not None:
            import inspect  # for the few who send to what is not open yet

            if inspect.getcoroutinestate(self._coroutine) == inspect.CORO_CREATED:
                raise TypeError(f"it is not open yet, so it cannot send: {self!r}")
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    if not TYPE_CHECKING:

        def __enter__(self) -> None:
            raise TypeError(f"`with` does not open it: {self!r}")

        def __exit__(self, *_: object) -> None: ...

    async def __aenter__(self) -> R:
        self._opened = await self._coroutine
        entered: R = await self._opened.__aenter__()
        return entered

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._opened.__aexit__(kind, error, traceback)

    # What debuggers and event loops show of a coroutine. (__getattr__() would cost each await 0.5 us.)

    @property
    def __name__(self) -> str:
        return str(self._coroutine.__name__)

    @property
    def cr_code(self) -> Any:
        return self._coroutine.cr_code

    @property
    def cr_frame(self) -> Any:
        return self._coroutine.cr_frame

    @property
    def cr_running(self) -> bool:
        return bool(self._coroutine.cr_running)

    @property
    def cr_await(self) -> Any:
        return self._coroutine.cr_await

    def __repr__(self) -> str:
        return f"<{self._coroutine.__qualname__}(): await it, or open it with `async with`>"


def opening(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Opening[R]]:
    """Let an ``async def`` that opens something be used in ``async with``, too."""

    @functools.wraps(function)
    def open_it(*args: P.args, **kwargs: P.kwargs) -> Opening[R]:
        coroutine = function(*args, **kwargs)
        if recorded():
            coroutine = _with_origin(coroutine, here())
        return Opening(coroutine)

    return open_it


async def _with_origin(coroutine: Coroutine[Any, Any, R], where: Origin) -> R:
    """Where it was called is a better name than the stack at its end, of which Python may have lost frames:
    those above an ``__await__()`` through which an exception was thrown.
    """
    opened: Any = await coroutine
    opened.origin = where
    return opened  # type: ignore[no-any-return]
