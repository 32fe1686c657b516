"""Calls with a message of fields (`peers.orders`): built, packed, checked, added up, answered."""

from __future__ import annotations

import time
from array import array
from typing import Any

from aiordma.measure.loops import repeat
from aiordma.measure.samples import percentile

from ..peers.orders import TOTAL
from . import Bench
from .calls import in_flight


async def measure(bench: Bench) -> dict[str, Any]:
    caller = await bench.connect_caller()
    for number in (1, 2):
        if (receipt := await caller.order(number)) != (number, TOTAL):
            raise RuntimeError(f"the receipt of order {number} says {receipt}")
    warm_up = bench.slice_seconds * 0.15
    await repeat(lambda: caller.order(7), array("d"), time.perf_counter() + warm_up)
    seconds = array("d")
    cpu = time.process_time()
    await repeat(lambda: caller.order(7), seconds, time.perf_counter() + bench.slice_seconds)
    cpu = time.process_time() - cpu
    ordered = sorted(seconds)
    await in_flight(lambda: caller.order(7), warm_up)
    found = {
        "count": len(ordered),
        "p50_us": percentile(ordered, 0.50) * 1e6,
        "p99_us": percentile(ordered, 0.99) * 1e6,
        "client_cpu_us": cpu / len(ordered) * 1e6,
        "per_second": await in_flight(lambda: caller.order(7), bench.slice_seconds),
    }
    await caller.close()
    return found
