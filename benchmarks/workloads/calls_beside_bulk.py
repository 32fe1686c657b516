"""Small calls, one at a time, beside 1 MiB calls: on the same connection, and on a separate one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from array import array
from typing import Any

from aiordma.measure.samples import percentile

from ..peers.base import Caller
from . import Bench
from .calls import one_at_a_time

BULK = 1 << 20
BULK_CALLS = 4


async def measure(bench: Bench) -> dict[str, Any]:
    bulk = await bench.connect_caller()
    beside = await bench.connect_caller()
    found = {"same": await _beside(bench, bulk, bulk), "own": await _beside(bench, bulk, beside)}
    await beside.close()
    await bulk.close()
    return found


async def _beside(bench: Bench, bulk: Caller, small: Caller) -> dict[str, float]:
    moved = 0

    async def transfer() -> None:
        nonlocal moved
        message = b"x" * BULK
        while True:
            moved += len(await bulk.echo(message))

    tasks = [asyncio.create_task(transfer()) for _ in range(BULK_CALLS)]
    await one_at_a_time(small, b"x" * 64, time.perf_counter() + bench.slice_seconds * 0.15, array("d"))
    seconds = array("d")
    begin, moved = time.perf_counter(), 0
    await one_at_a_time(small, b"x" * 64, begin + bench.slice_seconds, seconds)
    rate = moved / (time.perf_counter() - begin)
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task
    ordered = sorted(seconds)
    return {
        "count": len(ordered),
        "p50_us": percentile(ordered, 0.50) * 1e6,
        "p99_us": percentile(ordered, 0.99) * 1e6,
        "bulk_gigabytes_per_second": rate / 1e9,
    }
