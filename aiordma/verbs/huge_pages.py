"""Whether memory lies in huge pages: the kernel copies into those of another process twice as fast."""

from __future__ import annotations

import fcntl
import os
import struct

from ._window import address_of

__all__ = ["in_huge_pages"]

_HUGE_BYTES = 1 << 21
#: From the middle of the memory: to look at all of it would take longer the more of it is not in huge pages.
_LOOKED_AT_BYTES = 2 * _HUGE_BYTES

# Linux 6.7, include/uapi/linux/fs.h: struct pm_scan_arg and struct page_region.
_SCAN = struct.Struct("=12Q")
_REGION = struct.Struct("=3Q")
_PAGEMAP_SCAN = 3 << 30 | _SCAN.size << 16 | ord("f") << 8 | 16
_PAGE_IS_HUGE = 1 << 6


def in_huge_pages(address: int, nbytes: int) -> bool:
    """Whether it is there, in huge pages of 2 MiB or more, as far as a look at some of it tells.

    False also where that cannot be known: before Linux 6.7, and without /proc.
    """
    middle = (address + nbytes // 2) & -_HUGE_BYTES
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
