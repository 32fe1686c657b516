"""Round trips of one message at a time on one connection: how long they take, and what both ends spend."""

from __future__ import annotations

import os
import time
from array import array
from typing import Any

from aiordma.measure.samples import percentile

from ..processes import read_process
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
        client_before, server_before = read_process(os.getpid()), read_process(bench.server_pid)
        await connection.ping(size, time.perf_counter() + bench.slice_seconds, seconds)
        client = read_process(os.getpid()) - client_before
        server = read_process(bench.server_pid) - server_before
        await connection.close()
        ordered = sorted(seconds)
        found[str(size)] = {
            "count": len(ordered),
            "p50_us": percentile(ordered, 0.50) * 1e6,
            "p99_us": percentile(ordered, 0.99) * 1e6,
            "mean_us": sum(ordered) / len(ordered) * 1e6,
            "client_cpu_us": client.cpu_us / len(ordered),
            "server_cpu_us": server.cpu_us / len(ordered),
            "client_waits": client.waits / len(ordered),
            "server_waits": server.waits / len(ordered),
        }
    return found
