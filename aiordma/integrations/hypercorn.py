"""hypercorn: a server that serves by RDMA, too, on the same port.

::

    config = hypercorn.Config()
    config.bind = ["0.0.0.0:8000"]
    run(app, config)

In one process, on asyncio or uvloop. For workers, reloading and trio: ``aiordma run hypercorn ...``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ..launch.loops import new_event_loop
from ._versions import check_version, unusable

try:
    from hypercorn.asyncio import serve
except ImportError as error:
    raise unusable("hypercorn") from error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hypercorn.config import Config

check_version("hypercorn")

__all__ = ["run"]


def run(app: Any, config: Config, *, shutdown_trigger: Callable[..., Awaitable[None]] | None = None) -> None:
    """Serve `app` (ASGI or WSGI) until SIGINT or SIGTERM. ``config.worker_class`` "uvloop" is heeded.

    :param shutdown_trigger: what to wait for instead of a signal, as of ``hypercorn.asyncio.serve()``.
    :raises ValueError: the configuration wants another kind of worker, several, or reloading.
    """
    if config.worker_class not in ("asyncio", "uvloop"):
        raise ValueError(
            f"worker_class {config.worker_class!r}: this serves on asyncio and uvloop only; "
            "start hypercorn itself by `aiordma run hypercorn`"
        )
    if config.workers > 1 or config.use_reloader:
        wanted = "use_reloader" if config.use_reloader else f"workers={config.workers}"
        raise ValueError(
            f"{wanted}: this serves in one process, the one that calls it; start hypercorn itself by "
            "`aiordma run hypercorn`"
        )
    uvloop = config.worker_class == "uvloop"
    with asyncio.Runner(loop_factory=lambda: new_event_loop(uvloop=uvloop)) as runner:
        runner.run(serve(app, config, shutdown_trigger=shutdown_trigger))
