"""Open connections one by one: the first of a process (device, QP ... included), then others."""

from __future__ import annotations

import time
from array import array
from typing import Any

from aiordma.measure.samples import percentile

from . import Bench

SIZE = 64


async def measure(bench: Bench) -> dict[str, Any]:
    clock = time.perf_counter
    before = clock()
    connection = await bench.connect()
    first = clock() - before
    # This one stays open, so that all later connections find the shared state of a known peer (link, QP).
    await connection.start_echo(SIZE)

    connected, answered = array("d"), array("d")
    until = clock() + bench.slice_seconds
    while clock() < until or len(connected) < 10:
        before = clock()
        other = await bench.connect()
        connected.append(clock() - before)
        await other.start_echo(SIZE)
        await other.ping(SIZE, 0.0, array("d"))
        answered.append(clock() - before)
        await other.close()
    await connection.close()
    connected_sorted, answered_sorted = sorted(connected), sorted(answered)
    return {
        "first_us": first * 1e6,
        "count": len(connected),
        "connect_p50_us": percentile(connected_sorted, 0.50) * 1e6,
        "connect_p99_us": percentile(connected_sorted, 0.99) * 1e6,
        "answered_p50_us": percentile(answered_sorted, 0.50) * 1e6,
        "answered_p99_us": percentile(answered_sorted, 0.99) * 1e6,
    }
