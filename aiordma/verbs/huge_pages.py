"""Huge pages: shared memory is put there before it is used.

The kernel makes one of them in a tenth of the time that it takes for as many bytes of small pages, which it
makes one by one, when a process comes to them.
"""

from __future__ import annotations

import ctypes

HUGE_BYTES = 1 << 21
"""Of x86-64, and of aarch64 with pages of 4 KiB."""
#: Linux 5.14, and 6.1.
_MADV_POPULATE_WRITE, _MADV_COLLAPSE = 23, 25
_madvise = ctypes.CDLL(None).madvise


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
