"""Requests a second by RDMA and by TCP for each size of values: measured by turns, shown as bars."""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from rocefabric import drawing

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (64, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
SECONDS = 0.25


class Row(NamedTuple):
    """One size; SET and GET by turns, a second."""

    size: int
    rdma: float
    tcp: float
    #: median of the rounds' ratios
    ratio: float


async def measure(rdma: Any, tcp: Any, rounds: int, done: Callable[[], None]) -> list[Row]:
    """`rdma`, `tcp`: clients of one server. `done` is called after each size of a round."""
    found: dict[int, list[tuple[float, float]]] = {size: [] for size in SIZES}
    for turn in range(rounds):
        for size in SIZES:
            value = b"v" * size
            if turn % 2:
                by_tcp, by_rdma = await _rate(tcp, value), await _rate(rdma, value)
            else:
                by_rdma, by_tcp = await _rate(rdma, value), await _rate(tcp, value)
            found[size].append((by_rdma, by_tcp))
            done()
    return [
        Row(
            size,
            statistics.median(one for one, _ in pairs),
            statistics.median(other for _, other in pairs),
            statistics.median(one / other for one, other in pairs),
        )
        for size, pairs in found.items()
    ]


async def _rate(client: Any, value: bytes) -> float:
    await client.set("demo", value)
    count, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < SECONDS:
        await client.set("demo", value)
        got = await client.get("demo")
        assert len(got) == len(value)
        count += 2
    return count / took


def name(size: int) -> str:
    """64 B, 16 KiB, 1 MiB."""
    if size < 1 << 10:
        return f"{size} B"
    return f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"


# ---- as a picture ----------------------------------------------------------------------------------------


def picture(rows: list[Row], title: str) -> str:
    """SVG: how many times the requests of TCP, a bar for each size."""
    bars = [drawing.Bar(name(row.size), row.ratio, f"{row.rdma:,.0f} / {row.tcp:,.0f}") for row in rows]
    foot = f"One host with {os.cpu_count()} CPUs, software device. Load: {os.getloadavg()[0]:.1f}."
    below = "requests a second by RDMA, as a multiple of those by TCP"
    return drawing.bars(title, below, bars, one="TCP", foot=foot)
