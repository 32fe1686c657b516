"""What `rpc.connect()` and its like return: opened with ``async with`` only, which it says if it is awaited.

`connect()` gives a stream that its user may close later (:mod:`.opening`). A client of calls, and a server,
end with a block, since tasks of theirs do.
"""

from __future__ import annotations

import functools
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import TracebackType

P = ParamSpec("P")
R = TypeVar("R")


class Block(AbstractAsyncContextManager[R, bool | None], Generic[R]):
    """Used once, in ``async with``."""

    __slots__ = ("_manager", "_name")

    def __init__(self, manager: AbstractAsyncContextManager[R, bool | None], name: str) -> None:
        self._manager, self._name = manager, name

    async def __aenter__(self) -> R:
        return await self._manager.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._manager.__aexit__(kind, error, traceback)

    if not TYPE_CHECKING:
        # What newcomers try. Type checkers shall see that it is not there.

        def __enter__(self) -> NoReturn:
            raise TypeError(f"`with` does not open it: {self!r}")

        def __exit__(self, *_: object) -> None: ...

        def __await__(self) -> NoReturn:
            raise TypeError(f"it cannot be awaited: {self!r}")

        def __getattr__(self, name: str) -> Any:
            text = f"it is not open yet, so there is no {name!r}: {self!r}"
            raise AttributeError(text, name=name, obj=self)

    def __repr__(self) -> str:
        return f"<{self._name}(): open it with `async with {self._name}(...) as ...:`>"


def block(function: Callable[P, AsyncIterator[R]]) -> Callable[P, Block[R]]:
    """:func:`contextlib.asynccontextmanager`, for public functions."""
    manager = asynccontextmanager(function)
    name = f"{function.__module__.split('.')[1]}.{function.__name__}"

    @functools.wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> Block[R]:
        return Block(manager(*args, **kwargs), name)

    return make
