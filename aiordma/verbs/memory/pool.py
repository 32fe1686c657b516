"""The memory pool of one engine: its arenas, their budget, and the queue of what waits for memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from .arena import Arena
from .budget import Budget, Purpose
from .queue import MemoryQueue
from .region import MIN_BLOCK_BYTES, block_order

if TYPE_CHECKING:
    from collections.abc import Callable

    from .budget import PoolStatistics
    from .region import Registrar


class MemoryUser(Protocol):
    """The message memory of one link."""

    peer: str
    #: the link is gone
    is_closed: bool


class Kept(NamedTuple):
    """A block that holds a received message, until the user drops it."""

    length: int
    #: when it was taken, by the second that the engine's timer writes
    since: int
    holder: MemoryUser


class MemoryPool:
    """All registered memory of one engine: counts it and keeps it below the limit.

    :param slab_bytes: largest ordinary slab (power of two); a larger block gets a slab of its own.
    :param limit_bytes: hard limit of registered memory.
    :param call_soon: the event loop's, for callbacks to what waits for memory (:attr:`queue`).
    """

    def __init__(
        self,
        *,
        slab_bytes: int = 4 << 20,
        limit_bytes: int = 1 << 30,
        call_soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        if slab_bytes < MIN_BLOCK_BYTES or slab_bytes & (slab_bytes - 1):
            raise ValueError(f"slab_bytes={slab_bytes}: must be a power of two of at least {MIN_BLOCK_BYTES}")
        if limit_bytes < MIN_BLOCK_BYTES:
            raise ValueError(
                f"limit_bytes={limit_bytes}: must be at least {MIN_BLOCK_BYTES}, the smallest block"
            )
        self.slab_bytes = slab_bytes
        self.budget = Budget(limit_bytes)
        self.queue = MemoryQueue(self.budget, call_soon)
        self._arenas: set[Arena] = set()
        #: Received messages that were not given back, by address.
        self.kept: dict[int, Kept] = {}

    def arena(
        self,
        registrar: Registrar,
        *,
        first_slab_bytes: int | None = None,
        purpose: Purpose = Purpose.CONNECTIONS,
    ) -> Arena:
        """A new arena.

        :param first_slab_bytes: size of its first slab (rounded up to a power of two), for owners that may
            stay small; each further one is twice as large up to ``slab_bytes``. None: ``slab_bytes`` from the
            start.
        """
        first = (
            self.slab_bytes if first_slab_bytes is None else MIN_BLOCK_BYTES << block_order(first_slab_bytes)
        )
        arena = Arena(self, registrar, min(first, self.slab_bytes), purpose)
        self._arenas.add(arena)
        return arena

    def discard(self, arena: Arena) -> None:
        """An arena was closed."""
        self._arenas.discard(arena)

    @property
    def arenas(self) -> list[Arena]:
        """Those that are open."""
        return list(self._arenas)

    def set_limit(self, limit_bytes: int) -> None:
        """Another limit from now on. What is in use above it stays."""
        if limit_bytes != self.budget.limit_bytes:
            self.budget.limit_bytes = limit_bytes
            self.queue.on_freed()

    @property
    def limit_bytes(self) -> int:
        """Hard limit of registered memory."""
        return self.budget.limit_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes in blocks now."""
        return self.budget.used_bytes

    def statistics(self) -> PoolStatistics:
        """All counters."""
        return self.budget.statistics()

    def trim(self, *, now: bool = False) -> int:
        """Release what has been idle since the last call, everywhere. Returns bytes released."""
        return sum(arena.trim(now=now) for arena in list(self._arenas))

    def close(self) -> None:
        """Close all arenas. Memory that is still in blocks is released with the last of them."""
        self.queue.close()
        for arena in list(self._arenas):
            arena.close()
