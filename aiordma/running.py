"""What runs in this thread, and what is imported: found out without importing an event loop."""

from __future__ import annotations

import sys

from .borrowed import ENABLED


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
