"""The listeners of an event loop, for those who look from outside."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..addresses import Address
    from ..wake.base import Waker

_KEY = "listeners"


class Listening(NamedTuple):
    """What one tells of itself."""

    #: ``clc.Kind``
    kind: int
    addresses: Sequence[Address]
    #: connections taken from the kernel since it began
    accepted: int
    #: being negotiated, or silent so far
    negotiating: int
    #: that no task has accepted yet
    waiting: int = 0
    #: of the accepted ones, by path, and those that became neither; None: it does not count them
    rdma: int | None = None
    tcp: int | None = None
    failed: int | None = None


class Observed(Protocol):
    """A listener."""

    def observed(self) -> Listening | None:
        """What it tells; None: it is closed."""


def enter(waker: Waker, listener: Observed) -> None:
    """It listens from now on. It is referred to weakly."""
    table: WeakKeyDictionary[Observed, float] | None = waker.locals.get(_KEY)
    if table is None:
        table = waker.locals[_KEY] = WeakKeyDictionary()
    table[listener] = monotonic()


def of_loop(waker: Waker) -> list[tuple[Listening, float]]:
    """Those that listen now, and since when (``time.monotonic()``)."""
    table: WeakKeyDictionary[Observed, float] = waker.locals.get(_KEY) or WeakKeyDictionary()
    found = [(listener.observed(), since) for listener, since in list(table.items())]
    return [(each, since) for each, since in found if each is not None]
