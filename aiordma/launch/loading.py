"""What the methods for asyncio and those for trio have in common: when aiordma is loaded, and for what."""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..config import Config
    from .report import Report

#: Milliseconds that an unknown server has for its answer, before a plain connection is opened beside it, if
#: the environment does not set it; round trips are added. A program that asked for RDMA waits longer than one
#: that did not.
_HEAD_START_MS = 100
#: Milliseconds that connect_accepted_socket() waits for a client that says nothing: programs call it in the
#: loop that accepts, where one client holds up the next.
_FIRST_WAIT_MS = 50


def config_of_run() -> Config:
    """The settings of the environment, for connections of programs that did not ask for RDMA.

    :raises ValueError: a setting is not allowed.
    """
    from ..config import Config

    return _for_run(Config.from_env())


def config_of_accepted() -> Config:
    """The same, for connections that the program has accepted by itself.

    :raises ValueError: a setting is not allowed.
    """
    return _for_accepted(config_of_run())


#: The newest settings, and what was made of them. Each connection asks for them: to check all settings anew
#: takes as long as to connect by TCP, and to look them up by their values a tenth of that.
_run: tuple[Config, Config] | None = None


def _for_run(config: Config) -> Config:
    global _run
    if _run is None or _run[0] is not config:
        made = config
        if config.head_start_ms == type(config)().head_start_ms:
            made = config.changed(head_start_ms=_HEAD_START_MS)
        _run = config, made
    return _run[1]


@functools.lru_cache(maxsize=4)
def _for_accepted(config: Config) -> Config:
    return config.changed(server_first_wait_ms=_FIRST_WAIT_MS)


def load(module: str, report: Report) -> Any:
    """Import a module of aiordma, and what its first connection needs. From then on the report hears of
    negotiations. It takes tenths of a second, so it is not for an event loop.
    """
    functions = importlib.import_module(module)
    importlib.import_module("aiordma.negotiation.peer_cache").observe(report.count)
    with contextlib.suppress(ImportError):  # no pyverbs, or another Python's: the negotiation says so
        importlib.import_module("aiordma.links.engine")
    return functions
