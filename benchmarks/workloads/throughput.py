"""1 MiB sends, one by one, on one connection; and the CPU time per byte in both processes."""

from __future__ import annotations

import time
from typing import Any

from ..peers.base import Connection
from . import Bench

SIZE = 1 << 20
FIRST = 16
MOST = 1 << 16


async def measure(bench: Bench) -> dict[str, Any]:
    connection = await bench.connect()
    found = await flood(connection, bench.slice_seconds)
    await connection.close()
    return found


async def flood(connection: Connection, slice_seconds: float) -> dict[str, Any]:
    before = time.perf_counter()
    await connection.flood(SIZE, FIRST)
    took = time.perf_counter() - before
    count = max(FIRST, min(MOST, int(FIRST * slice_seconds / took)))

    client_cpu = time.process_time_ns()
    before = time.perf_counter()
    server_cpu_ns = await connection.flood(SIZE, count)
    took = time.perf_counter() - before
    client_cpu_ns = time.process_time_ns() - client_cpu
    moved = SIZE * count
    return {
        "bytes": moved,
        "seconds": took,
        "gigabytes_per_second": moved / took / 1e9,
        "client_cpu_ns_per_kib": client_cpu_ns / (moved / 1024),
        "server_cpu_ns_per_kib": server_cpu_ns / (moved / 1024),
    }
