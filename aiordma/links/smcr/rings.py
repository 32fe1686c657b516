"""Rings that a kernel writes into: many in one piece of memory, told apart by their index.

Linux keeps 255 pairs of key and address for each link group, and forgets none while the group lasts. So a
ring's place is used again, and with each piece of memory there are twice as many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...verbs.memory.arena import Arena, Block


class RingPlace:
    """One ring."""

    __slots__ = ("_block", "_owner", "freed", "index")

    def __init__(self, owner: RingPlaces, block: Block, index: int) -> None:
        self._owner, self._block = owner, block
        #: In its piece of memory, from 1.
        self.index = index
        self.freed = False

    @property
    def rkey(self) -> int:
        return self._block.rkey

    @property
    def memory(self) -> int:
        """Address of the piece of memory."""
        return self._block.address

    @property
    def length(self) -> int:
        return self._owner.ring_bytes

    @property
    def address(self) -> int:
        return self.memory + (self.index - 1) * self.length

    def free(self, used_bytes: int | None = None) -> None:
        """The peer writes into it no more. Idempotent."""
        if not self.freed:
            self.freed = True
            self._owner.take_back(self)

    def lose(self) -> None:
        """The peer may still write into it: nothing gets the place as long as the group lasts. Idempotent."""
        if not self.freed:
            self.freed = True
            self._owner.lost += 1


class RingPlaces:
    """Of one link group.

    :param ring_bytes: size of each ring.
    :param most: how many rings there may be.
    """

    def __init__(self, arena: Arena, ring_bytes: int, most: int) -> None:
        self._arena, self.ring_bytes, self._most = arena, ring_bytes, most
        self._blocks: list[Block] = []
        self._free: list[tuple[Block, int]] = []
        self._made = 0
        #: Rings whose places nothing gets any more.
        self.lost = 0

    def take(self) -> RingPlace:
        """A ring that was not used, or is used no more. :raises MemoryLimitError:"""
        if not self._free:
            count = max(1, min(self._made, self._most - self._made))
            block = self._arena.allocate(count * self.ring_bytes)
            self._blocks.append(block)
            self._made += count
            self._free += [(block, index) for index in range(count, 0, -1)]
        return RingPlace(self, *self._free.pop())

    def take_back(self, place: RingPlace) -> None:
        """See :meth:`RingPlace.free`."""
        self._free.append((place._block, place.index))

    def close(self) -> None:
        """The peer cannot write any more."""
        blocks, self._blocks = self._blocks, []
        self._free.clear()
        for block in blocks:
            block.free()
