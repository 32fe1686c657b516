"""What the methods for asyncio and those for trio have in common: when aiordma is loaded, and for what."""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..config import Config
    from ..errors import FallbackReason
    from .report import Report

__all__ = ["config_of_run", "is_plain", "load"]

#: Milliseconds that an unknown server has for its answer, before a plain connection is opened beside it, if
#: the environment does not set it; round trips are added. A program that asked for RDMA waits longer than one
#: that did not.
_HEAD_START_MS = 100


def config_of_run() -> Config:
    """The settings of the environment, for connections of programs that did not ask for RDMA.

    :raises ValueError: a setting is not allowed.
    """
    from ..config import Config

    config = Config.from_env()
    if config.head_start_ms == Config().head_start_ms:
        config = config.changed(head_start_ms=_HEAD_START_MS)
    return config


def load(module: str, report: Report) -> Any:
    """Import a module of aiordma, and what its first connection needs. From then on the report hears of
    negotiations. It takes tenths of a second, so it is not for an event loop.
    """
    functions = importlib.import_module(module)
    importlib.import_module("aiordma.negotiation.peer_cache").observe(report.count)
    with contextlib.suppress(ImportError):  # no pyverbs, or another Python's: the negotiation says so
        importlib.import_module("aiordma.links.engine")
    return functions


def is_plain(reason: FallbackReason | None) -> bool:
    """Whether a negotiation ended on TCP because the server is a plain one."""
    from ..errors import Code

    # A server that says so itself has understood the question.
    return reason is not None and reason.code == Code.PLAIN_TCP_PEER and reason.peer is None
