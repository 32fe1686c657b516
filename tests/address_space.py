"""A process without address space for anything large."""

from __future__ import annotations

import ctypes
import resource
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIECES = (1 << 20, 1 << 17)
_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]


@contextmanager
def nothing_large() -> Iterator[None]:
    """malloc() has no pieces of 128 KiB and more. What is small comes from what it has already."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    taken = []
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), limits[1]))
    try:
        for size in _PIECES:
            while (piece := _libc.malloc(size)) is not None:
                taken.append(piece)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        for piece in taken:
            _libc.free(piece)
