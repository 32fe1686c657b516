"""Memory that large frames are received into, used again when the program has dropped what was received.

Fresh memory is expensive: the kernel clears every page, which takes longer than to receive into it. Allocators give
large blocks back to the kernel as soon as they are free, so each transfer would pay for it again.
"""

from __future__ import annotations

import threading
import time
import weakref

import numpy as np
from distributed.protocol.utils import host_array

__all__ = ["POOL", "BufferPool"]

#: Smaller buffers come from the allocator, which keeps them by itself.
_LEAST_BYTES = 1 << 20
#: Sizes of blocks are multiples of this: a huge page.
_GRANULE = 1 << 21
#: A free block serves a buffer if no more than this part of it would be unused.
_WASTE = 0.25
#: Free blocks that were not used for so long are given back.
_IDLE_SECONDS = 10.0


class BufferPool:
    """Free blocks of one process. In any thread: what was received is dropped in any.

    :param limit: most bytes of free blocks that are kept; 0: none.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        #: (when it became free, block), oldest first
        self._free: list[tuple[float, np.ndarray]] = []
        # A finaliser may run while this thread holds the lock.
        self._lock = threading.RLock()
        #: bytes in free blocks, and buffers that were served by one
        self.free_bytes = self.reused = 0

    def take(self, nbytes: int) -> memoryview:
        """A writable buffer, whose content is undefined."""
        if nbytes < _LEAST_BYTES or not self.limit:
            buffer: memoryview = host_array(nbytes)
            return buffer
        block = self._reuse(nbytes)
        if block is None:
            block = np.empty(-(-nbytes // _GRANULE) * _GRANULE, np.uint8)
        # All users of the memory hold this array, by way of the memoryview: it is gone when they are.
        lent = block[:nbytes]
        weakref.finalize(lent, self._give_back, block).atexit = False
        return lent.data

    def _reuse(self, nbytes: int) -> np.ndarray | None:
        best = None
        with self._lock:
            for number, (_, block) in enumerate(self._free):
                if nbytes <= block.nbytes <= max(nbytes / (1 - _WASTE), nbytes + _GRANULE) and (
                    best is None or block.nbytes <= self._free[best][1].nbytes
                ):
                    best = number  # the newest of the smallest: its bytes may still be in a cache
            if best is None:
                return None
            _, block = self._free.pop(best)
            self.free_bytes -= block.nbytes
            self.reused += 1
            return block

    def _give_back(self, block: np.ndarray) -> None:
        if block.nbytes > self.limit:
            return
        with self._lock:
            self._free.append((time.monotonic(), block))
            self.free_bytes += block.nbytes
            self._drop_oldest(self.limit)

    def _drop_oldest(self, limit: int) -> None:
        while self.free_bytes > limit:
            self.free_bytes -= self._free.pop(0)[1].nbytes

    def drop_idle(self) -> float | None:
        """Give back what was not used for a while; seconds until this is worth doing again, None: nothing is kept."""
        now = time.monotonic()
        with self._lock:
            while self._free and now - self._free[0][0] >= _IDLE_SECONDS:
                self.free_bytes -= self._free.pop(0)[1].nbytes
            return self._free[0][0] + _IDLE_SECONDS - now if self._free else None


POOL = BufferPool(512 << 20)
"""That of this process."""
