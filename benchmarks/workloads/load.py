"""Round trips of 64 B that are due at fixed rates: times against load, and what both ends spend on each."""

from __future__ import annotations

import os
from typing import Any

from aiordma.measure.samples import percentile

from ..processes import read_process
from . import Bench

SIZE = 64
RATES = (1_000, 5_000, 10_000, 20_000, 50_000, 100_000)


async def measure(bench: Bench) -> dict[str, Any]:
    found = {}
    for rate in RATES:
        connection = await bench.connect()
        await connection.start_echo(SIZE)
        await connection.at_rate(SIZE, rate, bench.slice_seconds * 0.15)
        client_before, server_before = read_process(os.getpid()), read_process(bench.server_pid)
        seconds = await connection.at_rate(SIZE, rate, bench.slice_seconds)
        client = read_process(os.getpid()) - client_before
        server = read_process(bench.server_pid) - server_before
        await connection.close()
        ordered = sorted(seconds)
        found[str(rate)] = {
            "count": len(ordered),
            "p50_us": percentile(ordered, 0.50) * 1e6,
            "p99_us": percentile(ordered, 0.99) * 1e6,
            "p999_us": percentile(ordered, 0.999) * 1e6,
            "client_cpu_us": client.cpu_us / len(ordered),
            "server_cpu_us": server.cpu_us / len(ordered),
            "server_waits": server.waits / len(ordered),
        }
        if found[str(rate)]["p50_us"] > 0.1 * bench.slice_seconds * 1e6:
            break  # behind the knee: it cannot keep up, and higher rates say no more
    return found
