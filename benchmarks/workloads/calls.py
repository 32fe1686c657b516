"""Unary echo calls on one connection: 64 B, 4 KiB, 1 MiB; one at a time, and 64 in flight."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aiordma.measure.loops import repeat
from aiordma.measure.samples import percentile

from ..peers.base import Caller
from . import Bench

SIZES = (64, 4096, 1 << 20)
IN_FLIGHT = 64


async def one_at_a_time(caller: Caller, message: bytes, until: float, seconds: array[float]) -> None:
    await repeat(lambda: caller.echo(message), seconds, until)


async def in_flight(call: Callable[[], Awaitable[object]], seconds_long: float) -> float:
    """Calls per second with `IN_FLIGHT` calls in flight at any time."""
    seconds = array("d")
    begin = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(IN_FLIGHT):
            tasks.create_task(repeat(call, seconds, begin + seconds_long))
    return len(seconds) / (time.perf_counter() - begin)


async def measure(bench: Bench) -> dict[str, Any]:
    found = {}
    caller = await bench.connect_caller()
    for size in SIZES:
        message = b"x" * size
        call = partial(caller.echo, message)
        if len(await caller.echo(message)) != size:
            raise RuntimeError(f"an echo of {size} bytes has another length")
        warm_up = bench.slice_seconds * 0.15
        await one_at_a_time(caller, message, time.perf_counter() + warm_up, array("d"))
        seconds = array("d")
        cpu = time.process_time()
        await one_at_a_time(caller, message, time.perf_counter() + bench.slice_seconds, seconds)
        cpu = time.process_time() - cpu
        ordered = sorted(seconds)
        await in_flight(call, warm_up)
        found[str(size)] = {
            "count": len(ordered),
            "p50_us": percentile(ordered, 0.50) * 1e6,
            "p99_us": percentile(ordered, 0.99) * 1e6,
            "client_cpu_us": cpu / len(ordered) * 1e6,
            "per_second": await in_flight(call, bench.slice_seconds),
        }
    await caller.close()
    return found
