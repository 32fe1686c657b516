"""Registered memory: slabs, blocks, and which peers may access them.

Registering memory is slow, so it is done in *slabs* (4 MiB, smaller for small peers) that are cut into
power-of-two *blocks* by a buddy allocator, as X-RDMA's per-thread cache does. One :class:`MemoryPool` belongs
to one event loop's engine and counts all of its memory; an :class:`Arena` is the part of it that has one
protection domain, one set of access rights and one owner. A slab with remote rights belongs to the arena of
one link group and to no other, ever: that peer's rkey gives access to nothing but its own memory, and
when the arena closes its slabs are deregistered, not recycled.

Nothing here knows about the device: a :class:`Registrar` makes and destroys registered regions.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ..errors import AioRdmaError

if TYPE_CHECKING:
    from collections.abc import Callable

MIN_BLOCK_BYTES = 4096
"""Smallest block: a page, so that no two owners share one."""


class MemoryLimitError(AioRdmaError, MemoryError):
    """Registered memory would exceed the configured limit, or the device refuses to register more."""


class Region(NamedTuple):
    """One piece of registered memory, as a :class:`Registrar` returns it."""

    address: int
    length: int
    lkey: int
    rkey: int
    #: The registrar's own, handed back to it on release.
    handle: object


class Registrar(Protocol):
    """Makes registered memory. ``register`` raises OSError when the device or the system refuses."""

    #: Whether the memory may be written by a peer.
    remote: bool

    def register(self, length: int) -> Region:
        """``length`` bytes of zeroed, page-aligned, registered memory."""

    def release(self, region: Region) -> None:
        """Deregister and free. The device must be done with the memory."""

    def withdraw(self, region: Region) -> None:
        """Deregister only; ``release`` frees it. The device must be done with the memory."""


class Waiting(Protocol):
    """A flow or channel that found no memory."""

    def on_memory(self) -> None:
        """Some has come back."""


class PoolStatistics(NamedTuple):
    """Counters of a :class:`MemoryPool`; sizes in bytes."""

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


class _Slab:
    """A region cut by a buddy allocator: ``free[k]`` holds the offsets of free blocks of ``MIN_BLOCK_BYTES <<
    k``.
    """

    __slots__ = ("arena", "free", "idle_since_trim", "order", "region", "used_bytes")

    def __init__(self, region: Region, arena: Arena) -> None:
        self.region = region
        self.arena = arena
        self.order = _order(region.length)
        self.free: list[set[int]] = [set() for _ in range(self.order + 1)]
        self.free[self.order].add(0)
        self.used_bytes = 0
        self.idle_since_trim = False

    def take(self, order: int) -> int | None:
        """Offset of a free block of this order, or None."""
        for have in range(order, self.order + 1):
            if self.free[have]:
                offset = self.free[have].pop()
                # The upper halves that are cut off become free blocks of their own.
                for smaller in range(have - 1, order - 1, -1):
                    self.free[smaller].add(offset + (MIN_BLOCK_BYTES << smaller))
                self.used_bytes += MIN_BLOCK_BYTES << order
                return offset
        return None

    def give(self, offset: int, order: int) -> None:
        """Take a block back, joining it with its buddy as far as that one is free."""
        self.used_bytes -= MIN_BLOCK_BYTES << order
        while order < self.order:
            buddy = offset ^ (MIN_BLOCK_BYTES << order)
            if buddy not in self.free[order]:
                break
            self.free[order].remove(buddy)
            offset &= buddy
            order += 1
        self.free[order].add(offset)


@dataclass(slots=True, eq=False)
class Block:
    """A piece of registered memory with an owner. Release it with :meth:`free`, exactly once.

    Freeing it while the device, or a peer that holds the rkey, may still write to it is the caller's mistake
    and corrupts the next owner: wait for the completions, or bring the QP to the error state and see it
    flushed first.
    """

    address: int
    #: Usable bytes: a power of two, at least what was asked for (unless a smaller minimum was accepted).
    length: int
    lkey: int
    rkey: int
    _slab: _Slab | None = field(repr=False)
    _order: int = field(repr=False)

    @property
    def freed(self) -> bool:
        return self._slab is None

    def view(self) -> memoryview:
        """The memory itself, writable. Valid until the block is freed: nothing enforces that."""
        if self._slab is None:
            raise ValueError(
                "this block of registered memory was given back: its memory may belong to others"
            )
        array = (ctypes.c_char * self.length).from_address(self.address)
        return memoryview(array).cast("B")

    def free(self, used_bytes: int | None = None) -> None:
        """Give the block back.

        :param used_bytes: how much of it, from the start, was ever written to; None: all of it, perhaps. Only
            that much is zeroed where a peer has access.
        Raises ValueError when it was given back before.
        """
        slab = self._slab
        if slab is None:
            raise ValueError(
                f"block of {self.length} bytes at {self.address:#x} freed twice: it has exactly one owner"
            )
        self._slab = None
        slab.arena._free(slab, self.address - slab.region.address, self._order, used_bytes)


class Arena:
    """Blocks from slabs of one registrar, for one owner. Made by :meth:`MemoryPool.arena`."""

    def __init__(self, pool: MemoryPool, registrar: Registrar, first_slab_bytes: int) -> None:
        self._pool = pool
        self._registrar = registrar
        self._slabs: list[_Slab] = []
        self._next_slab_bytes = first_slab_bytes
        self._closed = False

    @property
    def registered_bytes(self) -> int:
        return sum(slab.region.length for slab in self._slabs)

    @property
    def used_bytes(self) -> int:
        return sum(slab.used_bytes for slab in self._slabs)

    @property
    def closed(self) -> bool:
        return self._closed

    def allocate(self, length: int, minimum: int | None = None) -> Block:
        """A block of at least ``length`` bytes.

        :param minimum: accept less, down to this many bytes, when there is not enough (SMC's buffer
            downgrade).
        Raises MemoryLimitError when not even that can be had, ValueError for sizes that make no sense.
        """
        if self._closed:
            raise ValueError("this arena of registered memory is closed: its link group is gone")
        if minimum is None:
            minimum = length
        if not 0 < minimum <= length:
            raise ValueError(
                f"cannot allocate {length} bytes with a minimum of {minimum}: 0 < minimum <= length"
            )
        wanted, least = _order(length), _order(minimum)
        refusal: OSError | None = None
        for order in range(wanted, least - 1, -1):
            slab, offset, fresh = self._find(order)
            if slab is None:
                try:
                    slab = self._grow(MIN_BLOCK_BYTES << order)
                except OSError as error:
                    refusal = error
                if slab is None:
                    continue
                taken = slab.take(order)
                assert taken is not None, "a new slab has room for what it was made for"
                offset, fresh = taken, True
            self._pool._count_allocation(
                MIN_BLOCK_BYTES << order, reused=not fresh, downgraded=order < wanted
            )
            region = slab.region
            return Block(
                region.address + offset, MIN_BLOCK_BYTES << order, region.lkey, region.rkey, slab, order
            )
        self._pool._failures += 1
        raise self._pool._refused(minimum, refusal) from refusal

    def _find(self, order: int) -> tuple[_Slab | None, int, bool]:
        for slab in self._slabs:
            offset = slab.take(order)
            if offset is not None:
                slab.idle_since_trim = False
                return slab, offset, False
        return None, 0, False

    def _grow(self, need: int) -> _Slab | None:
        """A new slab with room for ``need`` bytes, as large as habit and the limit allow. None: the limit."""
        size = max(need, self._next_slab_bytes)
        refusal: OSError | None = None
        while size >= need:
            if self._pool._make_room(size):
                try:
                    region = self._registrar.register(size)
                except OSError as error:
                    # A smaller one may still be had: of locked memory, of the device's table.
                    refusal = error
                else:
                    # A peer that needs much memory gets it in few registrations, one that needs little keeps
                    # little.
                    self._next_slab_bytes = min(size * 2, self._pool.slab_bytes)
                    slab = _Slab(region, self)
                    self._slabs.append(slab)
                    self._pool._registered(region.length)
                    return slab
            size //= 2
        if refusal is not None:
            raise refusal
        return None

    def _free(self, slab: _Slab, offset: int, order: int, used_bytes: int | None) -> None:
        size = MIN_BLOCK_BYTES << order
        if self._registrar.remote and not self._closed:
            # Free memory of a peer's slab is always zero: the next connection of the group starts clean, and
            # nothing of this one is left where a READ could find it.
            ctypes.memset(
                slab.region.address + offset, 0, size if used_bytes is None else min(used_bytes, size)
            )
        slab.give(offset, order)
        self._pool._used_bytes -= size
        self._pool._freed()
        if self._closed and slab.used_bytes == 0:
            self._release(slab)

    def _release(self, slab: _Slab) -> None:
        self._slabs.remove(slab)
        self._pool._released(slab.region.length)
        self._registrar.release(slab.region)

    def trim(self, *, now: bool = False) -> int:
        """Release slabs that have been idle since the last call (``now``: all idle ones). Returns bytes
        released.
        """
        released = 0
        for slab in list(self._slabs):
            if slab.used_bytes:
                continue
            if now or slab.idle_since_trim:
                released += slab.region.length
                self._release(slab)
            else:
                slab.idle_since_trim = True
        return released

    def close(self) -> None:
        """No more blocks. Slabs without any are released at once, the others with their last block.
        Idempotent.
        """
        if not self._closed:
            self._closed = True
            self._pool._arenas.discard(self)
            self.trim(now=True)

    def withdraw(self) -> None:
        """Close, and deregister everything: the protection domain can go. The memory of blocks that are still
        out stays until they are given back.
        """
        self.close()
        for slab in self._slabs:
            self._registrar.withdraw(slab.region)


class MemoryPool:
    """All registered memory of one engine: counts it and keeps it below the limit.

    :param slab_bytes: largest ordinary slab (power of two); a larger block gets a slab of its own.
    :param limit_bytes: hard limit of registered memory.
    :param call_soon: the event loop's, for callbacks to what waits for memory (:meth:`wait`).
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
        self.limit_bytes = limit_bytes
        self._arenas: set[Arena] = set()
        self._call_soon = call_soon
        self._waiting: list[Waiting] = []
        self._registered_bytes = self._registered_high_water = 0
        self._used_bytes = self._used_high_water = 0
        self._slab_count = self._slabs_registered = 0
        self._allocations = self._reuses = self._downgrades = self._failures = 0

    def arena(self, registrar: Registrar, *, first_slab_bytes: int | None = None) -> Arena:
        """A new arena.

        :param first_slab_bytes: size of its first slab (rounded up to a power of two), for owners that may
            stay small; each further one is twice as large up to ``slab_bytes``. None: ``slab_bytes`` from the
            start.
        """
        first = self.slab_bytes if first_slab_bytes is None else MIN_BLOCK_BYTES << _order(first_slab_bytes)
        arena = Arena(self, registrar, min(first, self.slab_bytes))
        self._arenas.add(arena)
        return arena

    def wait(self, waiting: Waiting) -> None:
        """Have its ``on_memory()`` called, once, when a block has been given back."""
        if waiting not in self._waiting:
            self._waiting.append(waiting)

    def _freed(self) -> None:
        if self._waiting and self._call_soon is not None:
            self._call_soon(self.retry)

    def retry(self) -> None:
        """Call everything that waits."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.on_memory()

    @property
    def used_bytes(self) -> int:
        """Bytes in blocks now."""
        return self._used_bytes

    def has_spare(self, length: int) -> bool:
        """Whether ``length`` bytes more leave half of the limit free."""
        return 2 * (self._used_bytes + length) <= self.limit_bytes

    def trim(self, *, now: bool = False) -> int:
        """Release what has been idle since the last call, everywhere. Returns bytes released."""
        return sum(arena.trim(now=now) for arena in list(self._arenas))

    def close(self) -> None:
        """Close all arenas. Memory that is still in blocks is released with the last of them."""
        self._call_soon = None
        self._waiting.clear()
        for arena in list(self._arenas):
            arena.close()

    def statistics(self) -> PoolStatistics:
        return PoolStatistics(
            registered_bytes=self._registered_bytes,
            registered_high_water=self._registered_high_water,
            used_bytes=self._used_bytes,
            used_high_water=self._used_high_water,
            limit_bytes=self.limit_bytes,
            slabs=self._slab_count,
            slabs_registered=self._slabs_registered,
            slabs_released=self._slabs_registered - self._slab_count,
            allocations=self._allocations,
            reuses=self._reuses,
            downgrades=self._downgrades,
            failures=self._failures,
        )

    def _make_room(self, size: int) -> bool:
        if self._registered_bytes + size <= self.limit_bytes:
            return True
        if self._registered_bytes - self._used_bytes >= size:
            # Slabs kept for a rainy day elsewhere: this is it.
            self.trim(now=True)
        return self._registered_bytes + size <= self.limit_bytes

    def _registered(self, size: int) -> None:
        self._slab_count += 1
        self._slabs_registered += 1
        self._registered_bytes += size
        self._registered_high_water = max(self._registered_high_water, self._registered_bytes)

    def _released(self, size: int) -> None:
        self._slab_count -= 1
        self._registered_bytes -= size

    def _count_allocation(self, size: int, *, reused: bool, downgraded: bool) -> None:
        self._allocations += 1
        self._reuses += reused
        self._downgrades += downgraded
        self._used_bytes += size
        self._used_high_water = max(self._used_high_water, self._used_bytes)

    def _refused(self, size: int, refusal: OSError | None) -> MemoryLimitError:
        state = (
            f"{self._used_bytes} of {self._registered_bytes} registered bytes are in use, the limit is "
            f"{self.limit_bytes}"
        )
        if refusal is None:
            return MemoryLimitError(
                f"no registered memory left for {size} bytes: {state}; raise Config.memory_limit_bytes, use "
                "smaller rings, or have fewer connections"
            )
        return MemoryLimitError(
            f"cannot register memory for {size} bytes: {refusal} ({state}); raise the limit of locked memory "
            "(ulimit -l), or lower Config.memory_limit_bytes"
        )


def _order(length: int) -> int:
    """Size class: the smallest k with ``MIN_BLOCK_BYTES << k >= length``."""
    return max(0, (length - 1).bit_length() - MIN_BLOCK_BYTES.bit_length() + 1)
