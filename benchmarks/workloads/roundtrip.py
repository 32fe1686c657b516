"""Round trips of one message at a time on one connection: 64 B, 4 KiB, 64 KiB."""

from __future__ import annotations

import time
from array import array
from typing import Any

from aiordma.measure.samples import percentile

from . import Bench

SIZES = (64, 4096, 65536)


async def measure(bench: Bench) -> dict[str, Any]:
    found = {}
    for size in SIZES:
        connection = await bench.connect()
        await connection.start_echo(size)
        warm_up = bench.slice_seconds * 0.15
        await connection.ping(size, time.perf_counter() + warm_up, array("d"))
        seconds = array("d")
        cpu = time.process_time()
        await connection.ping(size, time.perf_counter() + bench.slice_seconds, seconds)
        cpu = time.process_time() - cpu
        await connection.close()
        ordered = sorted(seconds)
        found[str(size)] = {
            "count": len(ordered),
            "p50_us": percentile(ordered, 0.50) * 1e6,
            "p99_us": percentile(ordered, 0.99) * 1e6,
            "mean_us": sum(ordered) / len(ordered) * 1e6,
            "client_cpu_us": cpu / len(ordered) * 1e6,
        }
    return found
