"""Look into a running program: what :func:`aiordma.statistics` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from .links import engine

if TYPE_CHECKING:
    from .links.statistics import EngineStatistics

__all__ = ["statistics"]


def statistics() -> EngineStatistics | None:
    """Counters of the running event loop's RDMA engine: devices, links, memory, completions, wake-ups.

    The result is a plain dictionary of numbers and strings, so ``json.dumps()`` takes it.

    :return: None while the loop has no engine: none of its connections has tried RDMA yet, or RDMA is not
        available here (``stream.fallback_reason`` says why).
    :raises RuntimeError: (or its relatives) no event loop is running in this thread.
    """
    running = engine.running()
    return None if running is None else cast("EngineStatistics", running.statistics())
