"""Memory that large frames are received into, used again when the program has dropped what was received.

Fresh memory is expensive: the kernel clears every page, which takes longer than to receive into it.
Allocators give large blocks back to the kernel as soon as they are free, so each transfer would pay again.
"""

from __future__ import annotations

import asyncio
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
        #: bytes in free blocks, blocks that are in use, and buffers that were served by a used block
        self.free_bytes = self.lent = self.reused = 0
        self._trimmed_by: weakref.ref[asyncio.AbstractEventLoop] | None = None

    def take(self, nbytes: int) -> memoryview:
        """A writable buffer, whose content is undefined."""
        if nbytes < _LEAST_BYTES or not self.limit:
            buffer: memoryview = host_array(nbytes)
            return buffer
        block = self._reuse(nbytes)
        if block is None:
            block = np.empty(-(-nbytes // _GRANULE) * _GRANULE, np.uint8)
        # All users of the memory hold this array, directly or by a memoryview: it is gone when they are. (A
        # slice of the block would not do: arrays on it, such as np.ndarray(buffer=...), hold the block.)
        lent = np.frombuffer(block.data, np.uint8, nbytes)
        weakref.finalize(lent, self._give_back, block).atexit = False
        self.lent += 1
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
        with self._lock:
            self.lent -= 1
            if block.nbytes > self.limit:
                return
            self._free.append((time.monotonic(), block))
            self.free_bytes += block.nbytes
            self._drop_oldest(self.limit)

    def _drop_oldest(self, limit: int) -> None:
        while self.free_bytes > limit:
            self.free_bytes -= self._free.pop(0)[1].nbytes

    def trim(self) -> None:
        """Give back what was not used for a while."""
        unused_since = time.monotonic() - _IDLE_SECONDS
        with self._lock:
            while self._free and self._free[0][0] <= unused_since:
                self.free_bytes -= self._free.pop(0)[1].nbytes

    def keep_trimmed(self) -> None:
        """Have the running loop call :meth:`trim` now and then, as long as there may be something to trim."""
        loop = asyncio.get_running_loop()
        trimming = None if self._trimmed_by is None else self._trimmed_by()
        if trimming is None or trimming.is_closed():
            self._trimmed_by = weakref.ref(loop)
            loop.call_later(_IDLE_SECONDS / 2, self._trim_again)

    def _trim_again(self) -> None:
        self._trimmed_by = None
        self.trim()
        if self.lent or self._free:
            self.keep_trimmed()


POOL = BufferPool(0)
"""That of this process. Comms set its limit."""
