"""Limits of time that say what was waited for, and whether this host has time for a measurement at all."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Iterator

_HERE = "this host is busy"


@contextlib.contextmanager
def limit(seconds: float, what: str) -> Iterator[None]:
    """:raises TimeoutError: it is not done in this time, with ``what`` in the text."""
    with anyio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise TimeoutError(f"{what} within {seconds:.0f} s")


def busy() -> str:
    """One sentence if more threads wanted to run in the last minute than there are processors."""
    load, processors = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load <= processors:
        return ""
    return f"{_HERE} (load {load:.0f} on {processors} CPUs): times are worse than it can do"


def busy_there(text: str) -> str:
    """The same sentence, which a server said of its host, for people elsewhere; empty if it is not one."""
    return text.replace(_HERE, "the server's host is busy", 1) if text.startswith(_HERE) else ""
