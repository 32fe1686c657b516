"""Streaming responses: items of 64 B and 64 KiB, one stream."""

from __future__ import annotations

import time
from typing import Any

from ..peers.base import Caller
from . import Bench

SIZES = (64, 65536)
FIRST = 200
MOST = 1_000_000


async def _take(caller: Caller, count: int, size: int) -> float:
    before = time.perf_counter()
    got = 0
    async for item in caller.items(count, size):
        got += len(item)
    took = time.perf_counter() - before
    if got != count * size:
        raise RuntimeError(f"{got} bytes came of {count} items of {size} bytes")
    return took


async def measure(bench: Bench) -> dict[str, Any]:
    found = {}
    caller = await bench.connect_caller()
    for size in SIZES:
        took = await _take(caller, FIRST, size)
        count = max(FIRST, min(MOST, int(FIRST * bench.slice_seconds / took)))
        took = await _take(caller, count, size)
        found[str(size)] = {
            "count": count,
            "items_per_second": count / took,
            "gigabytes_per_second": count * size / took / 1e9,
        }
    await caller.close()
    return found
