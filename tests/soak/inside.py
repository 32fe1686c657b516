"""What a process's own allocators have given out: it tells a leak from memory that they only keep."""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any


class _Mallinfo2(ctypes.Structure):
    """mallinfo(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


@functools.cache
def _mallinfo2() -> Any:
    """None with a C library that is not glibc, or one before 2.33."""
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is not None:
        function.restype = _Mallinfo2
    return function


def give_back() -> None:
    """Return what malloc() keeps to the system, as far as it can: what a process keeps is no leak."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def sample() -> dict[str, int]:
    """``blocks`` of Python's allocator, and ``malloc``: bytes that malloc() has given out."""
    values = {"blocks": sys.getallocatedblocks()}
    if (function := _mallinfo2()) is not None:
        info = function()
        values["malloc"] = info.uordblks + info.hblkhd
    return values
