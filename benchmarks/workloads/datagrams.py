"""Datagrams of 64 B and 1 KiB to one peer at full rate: arrivals per second and losses; and the round
trip of one."""

from __future__ import annotations

import time
from array import array
from typing import Any

from aiordma.measure.samples import percentile

from . import Bench

SIZES = (64, 1024)


async def measure(bench: Bench) -> dict[str, Any]:
    found = {}
    peer = await bench.connect_datagrams()
    for size in SIZES:
        warm_up = bench.slice_seconds * 0.15
        await peer.ping(size, time.perf_counter() + warm_up, array("d"))
        seconds = array("d")
        await peer.ping(size, time.perf_counter() + bench.slice_seconds, seconds)
        ordered = sorted(seconds)
        await peer.flood(size, time.perf_counter() + warm_up)
        sent, arrived, ns = await peer.flood(size, time.perf_counter() + bench.slice_seconds)
        found[str(size)] = {
            "per_second": (arrived - 1) / ns * 1e9 if arrived > 1 else 0.0,
            "sent": sent,
            "arrived": arrived,
            "lost_percent": 100 * (sent - arrived) / sent,
            "p50_us": percentile(ordered, 0.50) * 1e6,
            "p99_us": percentile(ordered, 0.99) * 1e6,
        }
    await peer.close()
    return found
