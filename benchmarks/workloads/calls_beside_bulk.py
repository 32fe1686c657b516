"""Small calls, one at a time, beside 1 MiB calls that keep the same connection busy."""

from __future__ import annotations

import asyncio
import contextlib
import time
from array import array
from typing import Any

from ..numbers import percentile
from ..peers.base import Caller
from . import Bench
from .calls import one_at_a_time

BULK = 1 << 20
BULK_CALLS = 4


async def measure(bench: Bench) -> dict[str, Any]:
    caller = await bench.connect_caller()
    moved = 0

    async def transfer(caller: Caller) -> None:
        nonlocal moved
        message = b"x" * BULK
        while True:
            moved += len(await caller.echo(message))

    bulk = [asyncio.create_task(transfer(caller)) for _ in range(BULK_CALLS)]
    await one_at_a_time(caller, b"x" * 64, time.perf_counter() + bench.slice_seconds * 0.15, array("d"))
    seconds = array("d")
    begin, moved = time.perf_counter(), 0
    await one_at_a_time(caller, b"x" * 64, begin + bench.slice_seconds, seconds)
    rate = moved / (time.perf_counter() - begin)
    for task in bulk:
        task.cancel()
    for task in bulk:
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await caller.close()
    ordered = sorted(seconds)
    return {
        "count": len(ordered),
        "p50_us": percentile(ordered, 0.50) * 1e6,
        "p99_us": percentile(ordered, 0.99) * 1e6,
        "max_us": ordered[-1] * 1e6,
        "bulk_gigabytes_per_second": rate / 1e9,
    }
