"""Many connections between two processes, each with one 64 B message in flight at a time."""

from __future__ import annotations

import asyncio
import time
from array import array
from typing import Any

from aiordma.measure.samples import percentile

from ..peers.base import Connection
from . import Bench

SIZE = 64
COUNTS = (1, 10, 100, 1000)


async def measure(bench: Bench) -> dict[str, Any]:
    found = {}
    opened: list[Connection] = []
    for count in COUNTS if not bench.quick else COUNTS[:-1]:
        while len(opened) < count:
            connection = await bench.connect()
            await connection.start_echo(SIZE)
            opened.append(connection)
        warm_up = time.perf_counter() + bench.slice_seconds * 0.2
        await asyncio.gather(*(each.ping(SIZE, warm_up, array("d")) for each in opened))
        seconds = array("d")
        before = time.perf_counter()
        until = before + bench.slice_seconds
        await asyncio.gather(*(each.ping(SIZE, until, seconds) for each in opened))
        took = time.perf_counter() - before
        ordered = sorted(seconds)
        found[str(count)] = {
            "per_second": len(ordered) / took,
            "p50_us": percentile(ordered, 0.50) * 1e6,
            "p99_us": percentile(ordered, 0.99) * 1e6,
        }
    for connection in opened:
        await connection.close()
    return found
