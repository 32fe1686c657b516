"""Public functions that a running event loop wants first: their modules are imported in a thread.

Importing what a first connection needs takes 50 ms and more of CPU time. Most of it is done with aiordma
itself (:mod:`.ahead`). Where it was not, the loop of a program that says ``await aiordma.connect(...)`` would
stand still; so it gets a stand-in, which awaits the import and then calls the function.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..wake.beside import start_thread
from .ahead import in_trio, of_loop
from .opening import Opening

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["import_beside", "stand_in"]


def stand_in(module: str, name: str) -> Callable[..., Opening[Any]]:
    """For the function ``name`` of ``module``."""

    async def load_and_call(*args: Any, **keywords: Any) -> Any:
        function = getattr(await import_beside(*of_loop(in_trio()), module), name)
        return await function(*args, **keywords)

    def function(*args: Any, **keywords: Any) -> Opening[Any]:
        return Opening(load_and_call(*args, **keywords))

    function.__name__ = function.__qualname__ = load_and_call.__qualname__ = name
    return function


async def import_beside(*names: str) -> Any:
    """Import modules in a thread; the last one. Cancelled, it only stops waiting.

    :raises ImportError:
    """
    outcome: list[Any] = []
    wait, wake = _trio_waiter() if in_trio() else _asyncio_waiter()

    def work() -> None:
        try:
            outcome.extend([importlib.import_module(name) for name in names])
        except BaseException as error:
            outcome[:] = [error]
        wake()

    start_thread(work)
    await wait()
    if isinstance(outcome[-1], BaseException):
        raise outcome[-1]
    return outcome[-1]


def _asyncio_waiter() -> tuple[Callable[[], Any], Callable[[], None]]:
    import asyncio

    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        try:
            loop.call_soon_threadsafe(done.set)
        except RuntimeError:
            pass  # it was closed meanwhile

    return done.wait, wake


def _trio_waiter() -> tuple[Callable[[], Any], Callable[[], None]]:
    import trio

    token, done = trio.lowlevel.current_trio_token(), trio.Event()

    def wake() -> None:
        try:
            token.run_sync_soon(done.set)
        except trio.RunFinishedError:
            pass

    return done.wait, wake
