"""Leaks: what programs forgot to close or to give back, counted by kind and named with where it was created.

* ``dropped``: a stream, a client, a listener or a transport went without ``aclose()``. Found when Python
  frees it. The library owns what is left, and closes it.
* ``loan``: ``borrow()`` whose block was never entered (found when Python frees it; the library gives it back)
  or is not left.
* ``idle``: an open stream that moves no byte, and that no task waits for. (A pool of connections looks the
  same: it is a suspect only.)
* ``view``: a received message whose view is kept, with the registered memory that it lies in.
* ``dead peer``: memory that an open object holds for a peer that is gone.

The last four are found by a timer (:mod:`.leak_watch`) when they have lasted for ``Config.leak_after_ms``,
within a quarter of that time. What is open belongs to the program, so it is reported and not closed. With
``Config.leak_frames`` each has the place where it was created.

::

    for leak in aiordma.observe.leaks.open_leaks():
        print(leak.kind, leak.what, leak.where)
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..proto.trace import RateLimit
from ..wake import ending
from ..wake import origin as origins

if TYPE_CHECKING:
    from ..wake.origin import Origin

logger = logging.getLogger("aiordma.leaks")

Kind = Literal["dropped", "loan", "idle", "view", "dead peer"]
KINDS: tuple[Kind, ...] = ("dropped", "loan", "idle", "view", "dead peer")

#: Those that are over, and remembered.
_REMEMBERED = 64


class Leak(NamedTuple):
    """One of them."""

    kind: Kind
    what: str
    #: seconds since the epoch
    found_at: float
    #: seconds that it had lasted when it was found; 0 for what was found when it was dropped
    lasted_s: float
    #: of registered memory that it holds; 0: not known, or none
    held_bytes: int
    #: the library has closed it, or given it back
    reclaimed: bool
    #: ``file:line function``, innermost first; empty unless it was recorded
    where: tuple[str, ...]


class Ledger:
    """The leaks of the process. In any thread, and in finalizers: these may interrupt a thread that is here,
    so the lock is one that the same thread may take again.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._counts: Counter[Kind] = Counter()
        self._recent: deque[Leak] = deque(maxlen=_REMEMBERED)
        self._open: dict[object, Leak] = {}
        self._limits = {kind: RateLimit() for kind in KINDS}

    def dropped(self, what: str, where: Origin, kind: str) -> None:
        """For finalizers (``wake.ending``)."""
        known: Kind = "loan" if kind == "loan" else "dropped"
        leak = Leak(known, what, time.time(), 0.0, 0, True, tuple(origins.shown(where)))
        with self._lock:
            self._counts[known] += 1
            self._recent.append(leak)
        self._log(leak)

    def found(self, key: object, leak: Leak) -> None:
        """It is there, and was not known."""
        with self._lock:
            self._counts[leak.kind] += 1
            self._open[key] = leak
        self._log(leak)

    def over(self, key: object) -> None:
        """It was given back after all."""
        with self._lock:
            leak = self._open.pop(key, None)
            if leak is not None:
                self._recent.append(leak)

    def _log(self, leak: Leak) -> None:
        # An idle connection may well be meant to be one; and the interpreter warns of what was dropped.
        level = logging.WARNING if leak.kind in ("loan", "view", "dead peer") else logging.INFO
        limit = self._limits[leak.kind]
        if not logger.isEnabledFor(level) or not limit.allow(time.monotonic()):
            return
        refused = limit.take_refused()
        logger.log(
            level,
            "leak (%s): %s%s%s%s",
            leak.kind,
            leak.what,
            f", for {leak.lasted_s:.1f} s" if leak.lasted_s else "",
            f", created at {leak.where[0]}" if leak.where else "",
            f"; {refused} more were not logged" if refused else "",
        )

    def read(self) -> tuple[Counter[Kind], list[Leak], list[Leak]]:
        """Counts, those that are there, and the last ones that are over."""
        with self._lock:
            return self._counts.copy(), list(self._open.values()), list(self._recent)

    def reset(self) -> None:
        with self._lock:
            self._counts.clear()
            self._recent.clear()
            self._limits = {kind: RateLimit() for kind in KINDS}


#: The process's.
ledger = Ledger()
ending.unclosed_hook = ledger.dropped


def counts() -> dict[Kind, int]:
    """How many were found since the process began, by kind; also those that are over."""
    found = ledger.read()[0]
    return {kind: found[kind] for kind in KINDS}


def open_leaks() -> list[Leak]:
    """Those that are there now, of all event loops of the process."""
    return ledger.read()[1]


def recent() -> list[Leak]:
    """The last ones that are over: reclaimed, or given back late."""
    return ledger.read()[2]


def reset() -> None:
    """Forget counts, and what is over."""
    ledger.reset()
