"""What a first connection needs, imported together with aiordma, so that the event loop finds it there.

A program that imports aiordma is going to connect, and its start is a better moment for these imports than
its first connection. No library is loaded and no device looked for: both change what other libraries of the
process see, and belong to the connection. So of pyverbs, only its constants are imported.

Where no connection is to be expected, and in a running event loop, the import stays light; :mod:`.late`
imports the rest in a thread when it is wanted.
"""

from __future__ import annotations

import importlib
import os
import sys

from ..borrowed import ENABLED

__all__ = ["import_ahead", "in_running_loop", "in_trio", "is_loaded", "is_wanted", "of_loop"]

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


def in_running_loop() -> bool:
    """Whether an event loop runs in this thread, asyncio's or trio's."""
    return in_trio() or _in_asyncio()


def _in_asyncio() -> bool:
    running = getattr(sys.modules.get("asyncio.events"), "get_running_loop", None)
    if running is None:
        return False
    try:
        running()
    except RuntimeError:
        return False
    return True


def in_trio() -> bool:
    """Whether trio runs in this thread."""
    lowlevel = sys.modules.get("trio.lowlevel")
    asks = None if lowlevel is None else getattr(lowlevel, "in_trio_task", None)
    return asks is not None and bool(asks())


def is_loaded(module: str) -> bool:
    """Whether its import has ended; another thread may be at it."""
    found = sys.modules.get(module)
    return found is not None and not (ENABLED and getattr(found.__spec__, "_initializing", False))


def of_loop(trio: bool) -> tuple[str, str]:
    """The modules that depend on the event loop.

    anyio imports its part by name when it is first used, which would be in the loop.
    """
    kind = "_trio" if trio else "_asyncio"
    return f"anyio._backends.{kind}", f"aiordma.wake.{kind}"


def import_ahead() -> None:
    """What cannot be imported is left to the connection, which says why."""
    try:
        for module in (*of_loop("trio" in sys.modules), *_MODULES):
            importlib.import_module(module)
        importlib.import_module("aiordma.config").work_ahead()
        importlib.import_module("aiordma.verbs.import_order").import_constants()
    except Exception as error:
        import logging

        logging.getLogger("aiordma").debug("not imported ahead: %r", error)
