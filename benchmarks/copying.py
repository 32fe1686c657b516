"""How fast this machine copies memory once: the bound of a transport that copies."""

from __future__ import annotations

import ctypes
import mmap
import time

SIZE = 1 << 20
# More than the caches of most machines hold: each copy of a walk over it comes from memory.
WHOLE = 256 << 20


def rate(*, cold: bool, seconds: float) -> float:
    """Gigabytes per second of `memcpy` of 1 MiB between pages: the same one, or `cold`, ever others."""
    whole = WHOLE if cold else 2 * SIZE
    with mmap.mmap(-1, whole) as memory:
        view = (ctypes.c_char * whole).from_buffer(memory)
        first = ctypes.addressof(view)
        ctypes.memset(first, 1, whole)
        half, moved, at = whole // 2, 0, 0
        before = now = time.perf_counter()
        while now - before < seconds:
            ctypes.memmove(first + half + at, first + at, SIZE)
            moved += SIZE
            at = (at + SIZE) % half
            now = time.perf_counter()
        # The mapping can be closed only when nothing points into it.
        del view
    return moved / (now - before) / 1e9
