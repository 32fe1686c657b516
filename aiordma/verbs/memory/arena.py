"""Arenas: blocks of registered memory for one owner, from slabs that no other owner ever has.

A slab with remote rights belongs to the arena of one link group and to no other, ever: that peer's rkey
gives access to nothing but its own memory, and when the arena closes its slabs are deregistered, not reused.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from .budget import Purpose
from .region import MIN_BLOCK_BYTES, block_order

if TYPE_CHECKING:
    from .budget import Budget
    from .queue import MemoryQueue
    from .region import Region, Registrar

#: From here on it is cheaper to give the pages of a block back than to fill pages with zeros that may never
#: have been touched.
_EMPTY_BYTES = 65536


class Slab:
    """A region cut by a buddy allocator: ``free[k]`` holds the offsets of free blocks of ``MIN_BLOCK_BYTES <<
    k``.
    """

    __slots__ = ("arena", "counted", "free", "idle_since_trim", "order", "region", "used_bytes")

    def __init__(self, region: Region, arena: Arena) -> None:
        self.region = region
        self.arena = arena
        self.order = block_order(region.length)
        self.free: list[set[int]] = [set() for _ in range(self.order + 1)]
        self.free[self.order].add(0)
        self.used_bytes = 0
        self.counted = self.idle_since_trim = False

    @property
    def purpose(self) -> Purpose:
        return self.arena.purpose

    def release(self) -> None:
        self.arena.release(self)

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
    _slab: Slab | None = field(repr=False)
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
        slab.arena.take_back(slab, self.address - slab.region.address, self._order, used_bytes)


class PoolView(Protocol):
    """What an arena knows of the pool that it is a part of."""

    #: Largest ordinary slab.
    slab_bytes: int
    budget: Budget
    queue: MemoryQueue

    def discard(self, arena: Arena) -> None: ...


class Arena:
    """Blocks from slabs of one registrar, for one owner. Made by ``MemoryPool.arena()``."""

    def __init__(self, pool: PoolView, registrar: Registrar, first_slab_bytes: int, purpose: Purpose) -> None:
        self._pool = pool
        self._budget = pool.budget
        self._registrar = registrar
        self.purpose = purpose
        self._slabs: list[Slab] = []
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
        wanted = order = block_order(length)
        found = self._find(order)
        if found is None:
            order, found = self._search(wanted, minimum)
        slab, offset, fresh = found
        size = MIN_BLOCK_BYTES << order
        self._budget.block_taken(size, reused=not fresh, downgraded=order < wanted)
        region = slab.region
        return Block(region.address + offset, size, region.lkey, region.rkey, slab, order)

    def _search(self, wanted: int, minimum: int) -> tuple[int, tuple[Slab, int, bool]]:
        """The order of a block, and what :meth:`_obtain` gives. Raises MemoryLimitError."""
        refusal: OSError | None = None
        for order in range(wanted, block_order(minimum) - 1, -1):
            try:
                found = self._obtain(order)
            except OSError as error:
                refusal = error
                continue
            if found is not None:
                return order, found
        raise self._budget.refused(minimum, refusal) from refusal

    def _obtain(self, order: int) -> tuple[Slab, int, bool] | None:
        """Slab, offset, and whether the slab is new; None: the limit. Raises OSError: the device refuses."""
        found = self._find(order) or self._grow(order)
        while found is None and self.purpose is Purpose.CONNECTIONS and self._budget.reclaim_one():
            found = self._find(order) or self._grow(order)
        return found

    def _find(self, order: int) -> tuple[Slab, int, bool] | None:
        need = MIN_BLOCK_BYTES << order
        for slab in self._slabs:
            if slab.used_bytes + need > slab.region.length:
                continue  # most are full where there are many connections
            if not slab.used_bytes and not self._budget.allows(self.purpose, slab.region.length):
                continue  # idle: in use, it would count for this purpose
            offset = slab.take(order)
            if offset is not None:
                slab.idle_since_trim = False
                self._budget.slab_in_use(slab)
                return slab, offset, False
        return None

    def _grow(self, order: int) -> tuple[Slab, int, bool] | None:
        """A new slab with room for a block, as large as habit and the limit allow. None: the limit."""
        need = MIN_BLOCK_BYTES << order
        size = max(need, self._next_slab_bytes)
        refusal: OSError | None = None
        while size >= need:
            if self._budget.allows(self.purpose, size) and self._budget.make_room(size):
                try:
                    region = self._registrar.register(size)
                except OSError as error:
                    # A smaller one may still be had: of locked memory, of the device's table.
                    refusal = error
                else:
                    # A peer that needs much memory gets it in few registrations, one that needs little keeps
                    # little.
                    self._next_slab_bytes = min(size * 2, self._pool.slab_bytes)
                    return self._new_slab(region, order)
            size //= 2
        if refusal is not None:
            raise refusal
        return None

    def _new_slab(self, region: Region, order: int) -> tuple[Slab, int, bool]:
        slab = Slab(region, self)
        self._slabs.append(slab)
        self._budget.slab_registered(region.length)
        offset = slab.take(order)
        assert offset is not None, "a new slab has room for what it was made for"
        self._budget.slab_in_use(slab)
        return slab, offset, True

    def take_back(self, slab: Slab, offset: int, order: int, used_bytes: int | None) -> None:
        """A block is given back: see :meth:`Block.free`."""
        size = MIN_BLOCK_BYTES << order
        if self._registrar.remote and not self._closed:
            # Free memory of a peer's slab is always zero: the next connection of the group starts clean, and
            # nothing of this one is left where a READ could find it.
            address = slab.region.address + offset
            if used_bytes is not None or size < _EMPTY_BYTES or not self._registrar.empty(address, size):
                ctypes.memset(address, 0, size if used_bytes is None else min(used_bytes, size))
        slab.give(offset, order)
        self._budget.block_freed(size)
        if not slab.used_bytes:
            self._budget.slab_is_idle(slab)
        self._pool.queue.on_freed()
        if self._closed and slab.used_bytes == 0:
            self.release(slab)

    def release(self, slab: Slab) -> None:
        """Deregister a slab of which no block is in use."""
        self._slabs.remove(slab)
        self._budget.slab_released(slab)
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
                self.release(slab)
            else:
                slab.idle_since_trim = True
        return released

    def close(self) -> None:
        """No more blocks. Slabs without any are released at once, the others with their last block.
        Idempotent.
        """
        if not self._closed:
            self._closed = True
            self._pool.discard(self)
            self.trim(now=True)

    def withdraw(self) -> None:
        """Close, and deregister everything: the protection domain can go. The memory of blocks that are still
        out stays until they are given back.
        """
        self.close()
        for slab in self._slabs:
            self._registrar.withdraw(slab.region)
