"""Huge pages of memory: whether it lies in them, and to put shared memory there before it is used.

The kernel copies twice as fast into those of another process. And it makes one of them in a tenth of the time
that the small pages take which it would make one by one, when a process comes to them.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct

from ._window import address_of

__all__ = ["HUGE_BYTES", "in_huge_pages", "use_huge_pages"]

HUGE_BYTES = 1 << 21
"""Of x86-64, and of aarch64 with pages of 4 KiB."""
#: From the middle of the memory: to look at all of it would take longer the more of it is not in huge pages.
_LOOKED_AT_BYTES = 2 * HUGE_BYTES

# Linux 6.7, include/uapi/linux/fs.h: struct pm_scan_arg and struct page_region.
_SCAN = struct.Struct("=12Q")
_REGION = struct.Struct("=3Q")
_PAGEMAP_SCAN = 3 << 30 | _SCAN.size << 16 | ord("f") << 8 | 16
_PAGE_IS_HUGE = 1 << 6

#: Linux 5.14, and 6.1.
_MADV_POPULATE_WRITE, _MADV_COLLAPSE = 23, 25
_madvise = ctypes.CDLL(None).madvise


def in_huge_pages(address: int, nbytes: int) -> bool:
    """Whether it is there, in huge pages of 2 MiB or more, as far as a look at some of it tells.

    False also where that cannot be known: before Linux 6.7, and without /proc.
    """
    middle = (address + nbytes // 2) & -HUGE_BYTES
    if middle < address or middle + _LOOKED_AT_BYTES > address + nbytes:
        return False
    found = bytearray(_REGION.size)
    where = (address_of(found), 1)
    scan = bytearray(
        _SCAN.pack(
            _SCAN.size, 0, middle, middle + _LOOKED_AT_BYTES, 0, *where, 0, 0, _PAGE_IS_HUGE, 0, _PAGE_IS_HUGE
        )
    )
    try:
        pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        regions = fcntl.ioctl(pagemap, _PAGEMAP_SCAN, scan)
    except OSError:
        return False
    finally:
        os.close(pagemap)
    start, end, _ = _REGION.unpack(found)
    return bool(regions == 1 and end - start == _LOOKED_AT_BYTES)


def use_huge_pages(address: int, nbytes: int) -> bool:
    """Put fresh shared memory into huge pages, as far as it has room for whole ones. All of it is there then.

    May take long on a machine with little memory in one piece. Only system calls look at the memory, so it
    may be given back meanwhile. False: not all, or not at all; nothing is lost. So before Linux 6.1, and
    where ``/sys/kernel/mm/transparent_hugepage/shmem_enabled`` is ``deny``.
    """
    first = -address & (HUGE_BYTES - 1)
    done = first + HUGE_BYTES <= nbytes
    for offset in range(first, nbytes - HUGE_BYTES + 1, HUGE_BYTES):
        where = ctypes.c_void_p(address + offset)
        # The kernel collapses what has a page at least.
        done = (
            _madvise(where, ctypes.c_size_t(1), _MADV_POPULATE_WRITE) == 0
            and _madvise(where, ctypes.c_size_t(HUGE_BYTES), _MADV_COLLAPSE) == 0
            and done
        )
    return done
