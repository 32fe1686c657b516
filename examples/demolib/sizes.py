"""Requests a second by RDMA and by TCP for each size of values: measured by turns, shown as bars."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any, NamedTuple

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

WIDTH, LEFT, HEIGHT, TOP = 720, 70, 26, 56
COLOURS = ("#1769aa", "#9aa5b1")


def picture(rows: list[Row], title: str) -> str:
    """SVG: how many times the requests of TCP, a bar for each size."""
    most = max(1.0, *(row.ratio for row in rows))
    scale = (WIDTH - LEFT - 210) / most
    bottom = TOP + HEIGHT * len(rows)
    at_one = LEFT + scale
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom + 36}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{bottom + 36}" fill="white"/>',
        f'<text x="10" y="24" font-size="16">{title}</text>',
        '<text x="10" y="44" fill="#555">requests a second by RDMA, as a multiple of those by TCP</text>',
    ]
    for number, row in enumerate(rows):
        y, length = TOP + HEIGHT * number, row.ratio * scale
        colour = COLOURS[row.ratio < 1]
        parts += [
            f'<text x="{LEFT - 8}" y="{y + 17}" text-anchor="end">{name(row.size)}</text>',
            f'<rect x="{LEFT}" y="{y + 4}" width="{length:.1f}" height="{HEIGHT - 8}" fill="{colour}"/>',
            f'<text x="{LEFT + length + 8:.1f}" y="{y + 17}">{row.ratio:.2f}x '
            f'<tspan fill="#555">({row.rdma:,.0f} / {row.tcp:,.0f})</tspan></text>',
        ]
    parts += [
        f'<line x1="{at_one:.1f}" y1="{TOP}" x2="{at_one:.1f}" y2="{bottom}" stroke="#333" '
        'stroke-dasharray="4 3"/>',
        f'<text x="{at_one:.1f}" y="{bottom + 18}" text-anchor="middle" fill="#333">TCP</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"
