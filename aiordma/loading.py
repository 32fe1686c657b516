"""The imports of a first connection: ahead, together with aiordma, or beside a running event loop.

A program that imports aiordma is going to connect, and its start is a better moment for these imports than
its first connection. They take 50 ms and more of CPU time. No library is loaded and no device looked for:
both change what other libraries of the process see, and belong to the connection. So of pyverbs, only its
constants are imported.

Where no connection is to be expected, and in a running event loop, the import stays light. The loop of a
program that then says ``await aiordma.connect(...)`` would stand still; so it gets a stand-in, which awaits
the import in a thread and then calls the function.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from .running import in_running_loop, in_trio, is_loaded

if TYPE_CHECKING:
    from collections.abc import Callable

    from .negotiation.opening import Opening

#: All that `connect()` and `listen()` import, and what they import later by name.
_MODULES = (
    "aiordma.streams.connector",
    "aiordma.streams.listener",
    "aiordma.links.engine",
    "aiordma.links.contact",
    "aiordma.verbs.backend",
    "aiordma.verbs.own._pointers",
    "aiordma.admin.endpoint",
)


def is_wanted() -> bool:
    """Not without RDMA, in aiordma's own commands, or where `aiordma run` has aiordma imported."""
    if os.environ.get("AIORDMA_MODE") == "tcp" or "AIORDMA_RUN" in os.environ:
        return False
    return not _is_own_command() and not in_running_loop()


def _is_own_command() -> bool:
    """A wrong answer costs time, and nothing else."""
    started = sys.argv[0] if getattr(sys, "argv", None) else ""
    if started == "-m":  # of `python -m ...`, which imports the packages around the module before that
        return any(word.partition(".")[0] == "aiordma" for word in sys.orig_argv)
    name = os.path.basename(started)
    return name == "aiordma" or name.startswith("xr-")


def _of_loop(trio: bool) -> tuple[str, str]:
    """The modules that depend on the event loop.

    anyio imports its part by name when it is first used, which would be in the loop.
    """
    kind = "_trio" if trio else "_asyncio"
    return f"anyio._backends.{kind}", f"aiordma.wake.{kind}"


def import_ahead() -> None:
    """What cannot be imported is left to the connection, which says why."""
    try:
        for module in (*_of_loop("trio" in sys.modules), *_MODULES):
            importlib.import_module(module)
        importlib.import_module("aiordma.config").work_ahead()
        importlib.import_module("aiordma.verbs.import_order").import_constants()
    except Exception as error:
        import logging

        logging.getLogger("aiordma").debug("not imported ahead: %r", error)


# ---- beside a running loop


def stand_in(module: str, name: str) -> Callable[..., Opening[Any]]:
    """For the function ``name`` of ``module``."""
    from .negotiation.opening import Opening

    async def load_and_call(*args: Any, **keywords: Any) -> Any:
        names = (*_of_loop(in_trio()), module)
        # A program may keep the stand-in, as with `from aiordma import connect`: then this is each call's.
        loaded = sys.modules[module] if all(map(is_loaded, names)) else await import_beside(*names)
        return await getattr(loaded, name)(*args, **keywords)

    def function(*args: Any, **keywords: Any) -> Opening[Any]:
        return Opening(load_and_call(*args, **keywords))

    function.__name__ = function.__qualname__ = load_and_call.__qualname__ = name
    return function


async def import_beside(*names: str) -> Any:
    """Import modules in a thread; the last one. Cancelled, it only stops waiting.

    :raises ImportError:
    """
    from .wake.beside import start_thread

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
