"""The budget: counts the registered memory of one engine, and says who may take how much.

Connections hold their memory (rings, receive slots) for as long as they live; messages hold theirs for
moments. So that messages never wait for memory that does not come back, a quarter of it is theirs while any
are sent (:meth:`Budget.begin_messages`). :class:`Purpose` says who takes it.
"""

from __future__ import annotations

import enum
import errno
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ...errors import AioRdmaError, Code, remedy

if TYPE_CHECKING:
    from collections.abc import Callable

    from .region import Region


class MemoryLimitError(AioRdmaError, MemoryError):
    """Registered memory would exceed the configured limit, or the device refuses to register more.

    :param code: the reason to state when a connection does without RDMA therefore.
    """

    def __init__(self, text: str, code: Code = Code.OUT_OF_MEMORY) -> None:
        super().__init__(text)
        self.code = code

    def __reduce__(self) -> tuple[type[MemoryLimitError], tuple[str, Code]]:
        return type(self), (str(self), self.code)


class Purpose(enum.Enum):
    """What the blocks of an arena are for. It decides how much of the pool they may take."""

    CONNECTIONS = "rings, receive slots and the like: for the life of a connection"
    SOURCES = "messages to be pulled by the peer: until it has them"
    SINKS = "messages that are pulled: until the user drops them"
    COPIES = "messages that are put together in ordinary memory: until the user has them"

    # That of Enum is Python code, and each connect looks five of them up.
    __hash__ = object.__hash__


class PoolStatistics(NamedTuple):
    """Counters of a pool; sizes in bytes."""

    #: Registered now, and the most there ever was.
    registered_bytes: int
    registered_high_water: int
    #: Of that, in blocks now, and the most there ever was.
    used_bytes: int
    used_high_water: int
    #: The configured limit of ``registered_bytes``.
    limit_bytes: int
    #: Slabs there are, were ever registered, and were released again.
    slabs: int
    slabs_registered: int
    slabs_released: int
    #: Blocks handed out, how many of them needed no new slab, how many were smaller than asked for.
    allocations: int
    reuses: int
    downgrades: int
    #: Requests that could not be served at all.
    failures: int


class CountedSlab(Protocol):
    """What the budget knows of a slab."""

    region: Region
    counted: bool

    @property
    def purpose(self) -> Purpose: ...

    def release(self) -> None:
        """Deregister and forget it: no block of it is in use."""


class Budget:
    """Counts slabs and blocks, and keeps them below the limit."""

    def __init__(self, limit_bytes: int) -> None:
        #: Hard limit of registered memory.
        self.limit_bytes = limit_bytes
        #: Called when connections find no memory: releases something that is kept for later; False: there is
        #: nothing.
        self.reclaim: Callable[[], bool] | None = None
        self._messengers = 0
        #: Bytes of the slabs with blocks in use, and the slabs without any.
        self._busy = dict.fromkeys(Purpose, 0)
        self._idle: OrderedDict[CountedSlab, None] = OrderedDict()
        self._registered_bytes = self._registered_high_water = 0
        #: Bytes in blocks now, and the most there ever was.
        self.used_bytes = self._used_high_water = 0
        self._slab_count = self._slabs_registered = 0
        #: Blocks that were ever handed out.
        self.allocations = 0
        self._reuses = self._downgrades = self._failures = 0
        #: Bytes of messages that are put together outside: there may never be a block for one of them.
        self.copied_bytes = 0

    # ---- who may take what

    def begin_messages(self) -> None:
        """Somebody will send and receive large messages, until :meth:`end_messages`: from now on connections
        leave a quarter of the pool to them.

        :raises MemoryLimitError: connections have more already.
        """
        if self._busy[Purpose.CONNECTIONS] > self.limit_bytes - self.limit_bytes // 4:
            raise MemoryLimitError(
                f"no registered memory left for messages: {self._state()}, and a quarter of it must be free; "
                + _REMEDY
            )
        self._messengers += 1

    def end_messages(self) -> None:
        """One of them has gone."""
        self._messengers -= 1

    @property
    def for_messages(self) -> int:
        """Bytes that connections leave to messages now."""
        return max(0, self.limit_bytes - self._busy[Purpose.CONNECTIONS])

    @property
    def longest_source(self) -> int:
        """Longest block for which a source waits: what sources may have, and users may not keep for ever."""
        return _power(self.for_messages * 5 // 12)

    @property
    def longest_sink(self) -> int:
        """Longest block for which a pull waits: what neither sources have nor users keep for ever."""
        return _power(self.for_messages // 4)

    @property
    def message_bytes(self) -> int:
        """Bytes that messages hold now, with what lies in the same slabs."""
        return self._busy[Purpose.SOURCES] + self._busy[Purpose.SINKS]

    def may_copy(self, length: int) -> bool:
        """Whether a message may be put together outside: the first, and others within the limit."""
        return not self.copied_bytes or self.copied_bytes + length <= self.limit_bytes

    def may_keep_sinks(self) -> bool:
        """Whether users may keep what is in sinks, perhaps for ever."""
        room = self.for_messages
        return self._busy[Purpose.SINKS] <= room // 3 and self.message_bytes <= room // 4 * 3

    def allows(self, purpose: Purpose, size: int) -> bool:
        """Whether a slab of ``size`` bytes more may be in use for this.

        Of what connections leave, sources and what users keep never have the last quarter: two ends that had
        put all their memory into messages for each other would wait endlessly. And users never keep more than
        a third, so that sources find room.
        """
        messages = self.message_bytes
        if purpose is Purpose.SINKS:
            return True
        if purpose is Purpose.SOURCES:
            return messages + size <= self.for_messages // 4 * 3
        kept = 0
        if self._messengers:
            kept = max(self.limit_bytes // 4, 3 * self._busy[Purpose.SINKS], -(-messages * 4 // 3))
        return self._busy[purpose] + size <= self.limit_bytes - kept

    def has_spare(self, length: int) -> bool:
        """Whether ``length`` bytes more leave half of the limit free."""
        return 2 * (sum(self._busy.values()) + length) <= self.limit_bytes

    def make_room(self, size: int) -> bool:
        """Release idle slabs until another of ``size`` bytes is within the limit. False: not possible."""
        if sum(self._busy.values()) + size > self.limit_bytes:
            return False
        while self._registered_bytes + size > self.limit_bytes:
            # Slabs kept for a rainy day elsewhere: this is it.
            next(iter(self._idle)).release()
        return True

    def reclaim_one(self) -> bool:
        """Have something released that is kept for later. False: there is nothing."""
        return self.reclaim is not None and self.reclaim()

    # ---- counting

    def slab_registered(self, size: int) -> None:
        """A slab was made."""
        self._slab_count += 1
        self._slabs_registered += 1
        self._registered_bytes += size
        self._registered_high_water = max(self._registered_high_water, self._registered_bytes)

    def slab_released(self, slab: CountedSlab) -> None:
        """A slab is gone."""
        self._slab_count -= 1
        self._registered_bytes -= slab.region.length
        self._idle.pop(slab, None)

    def slab_in_use(self, slab: CountedSlab) -> None:
        """A block of it was taken."""
        if not slab.counted:
            slab.counted = True
            self._busy[slab.purpose] += slab.region.length
            self._idle.pop(slab, None)

    def slab_is_idle(self, slab: CountedSlab) -> None:
        """Its last block was given back."""
        slab.counted = False
        self._busy[slab.purpose] -= slab.region.length
        self._idle[slab] = None

    def block_taken(self, size: int, *, reused: bool, downgraded: bool) -> None:
        """A block was handed out.

        :param reused: no new slab was necessary for it
        :param downgraded: it is smaller than what was asked for
        """
        self.allocations += 1
        self._reuses += reused
        self._downgrades += downgraded
        self.used_bytes = used = self.used_bytes + size
        if used > self._used_high_water:
            self._used_high_water = used

    def smaller_wanted(self) -> None:
        """A block was handed out whose taker asked for less than it wanted, because memory is short."""
        self._downgrades += 1

    def block_freed(self, size: int) -> None:
        """A block was given back."""
        self.used_bytes -= size

    def statistics(self) -> PoolStatistics:
        """All counters."""
        return PoolStatistics(
            registered_bytes=self._registered_bytes,
            registered_high_water=self._registered_high_water,
            used_bytes=self.used_bytes,
            used_high_water=self._used_high_water,
            limit_bytes=self.limit_bytes,
            slabs=self._slab_count,
            slabs_registered=self._slabs_registered,
            slabs_released=self._slabs_registered - self._slab_count,
            allocations=self.allocations,
            reuses=self._reuses,
            downgrades=self._downgrades,
            failures=self._failures,
        )

    def _state(self) -> str:
        return (
            f"{self.used_bytes} of {self._registered_bytes} registered bytes are in use "
            f"({self._busy[Purpose.CONNECTIONS]} by connections), the limit is {self.limit_bytes}"
        )

    def refused(self, size: int, refusal: OSError | None) -> MemoryLimitError:
        """Count a request that could not be served. Returns the error that says why.

        :param refusal: the device's or the system's; None: the limit
        """
        self._failures += 1
        state = self._state()
        if refusal is None:
            if self._messengers:
                state += f", of which {self.limit_bytes // 4} are kept for messages"
            return MemoryLimitError(f"no registered memory left for {size} bytes: {state}; {_REMEDY}")
        cause = f"cannot register memory for {size} bytes: {refusal}"
        if refusal.errno in (errno.EMFILE, errno.ENFILE):
            hint = "" if remedy(refusal.errno) in cause else f": {remedy(refusal.errno)}"
            return MemoryLimitError(cause + hint, Code.DEVICE_FAILURE)
        return MemoryLimitError(
            f"{cause} ({state}); raise the limit of locked memory (ulimit -l), or lower "
            "Config.memory_limit_bytes"
        )


_REMEDY = (
    "raise Config.memory_limit_bytes (AIORDMA_MEMORY_LIMIT_BYTES), use smaller rings (AIORDMA_RING_BYTES), "
    "or have fewer connections"
)


def _power(length: int) -> int:
    """The largest power of two that is not larger."""
    return 1 << (length.bit_length() - 1) if length else 0
