"""What the allocators say follows what a process holds, and not what it has freed."""

from __future__ import annotations

import ctypes

from tests.soak import inside


def test_blocks_of_python() -> None:
    before = inside.sample()["blocks"]
    held = [object() for _ in range(50_000)]
    assert inside.sample()["blocks"] - before >= len(held)
    del held
    assert inside.sample()["blocks"] - before < 10_000


def test_bytes_of_malloc() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    before = inside.sample()["malloc"]
    held = [libc.malloc(ctypes.c_size_t(10_000)) for _ in range(500)]
    assert inside.sample()["malloc"] - before >= 5_000_000
    for pointer in held:
        libc.free(ctypes.c_void_p(pointer))
    inside.give_back()
    assert inside.sample()["malloc"] - before < 1_000_000
