"""Memory for tests of pages: shared memory as the software device has it, and which of it is there."""

from __future__ import annotations

import ctypes
import mmap

from aiordma.verbs._window import address_of
from aiordma.verbs.huge_pages import HUGE_BYTES

_MAP_FIXED = 0x10
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p


def shared(nbytes: int) -> tuple[mmap.mmap, int]:
    """Fresh shared memory of ``nbytes`` that begins at a huge page: what unmaps it when it is closed, and the
    address."""
    room = mmap.mmap(-1, nbytes + HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = (address_of(room) + HUGE_BYTES - 1) & -HUGE_BYTES
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_FIXED
    where = ctypes.c_void_p(address)
    found = _libc.mmap(
        where, ctypes.c_size_t(nbytes), mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, ctypes.c_long(0)
    )
    assert found == address
    return room, address


def resident(address: int, nbytes: int) -> int:
    """Bytes of this range that are in memory (mincore(2))."""
    pages = (ctypes.c_ubyte * (nbytes // mmap.PAGESIZE))()
    assert _libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), pages) == 0
    return sum(page & 1 for page in pages) * mmap.PAGESIZE
