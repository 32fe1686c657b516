"""Draws the transfers of a run of the benchmark; also ``python draw.py RESULTS.json PICTURE.svg``."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from measure import MIB, Sample

from rocefabric import drawing

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["draw"]

OURS, BASE = "rdma", "tcp"


def draw(samples: Sequence[Sample], picture: Path) -> None:
    """A bar for each size: the median by ``rdma://`` as a multiple of that by ``tcp://``, as SVG."""
    found: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        if sample.what == "transfer":
            found[sample.nbytes][sample.protocol].append(sample.value / 1e9)
    rows = [
        _row(size, {protocol: median(rates) for protocol, rates in found[size].items()})
        for size in sorted(found)
        if {OURS, BASE} <= found[size].keys()
    ]
    text = drawing.bars(
        "Arrays between two Dask workers of one host",
        f"GB/s by {OURS}://, as a multiple of those by {BASE}://; medians of all transfers",
        rows,
        one=f"{BASE}://",
    )
    picture.write_text(text, encoding="utf-8")


def _row(size: int, rates: dict[str, float]) -> drawing.Bar:
    others = ", ".join(
        f"{rates[OURS] / rate:.1f}x {protocol}:// ({rate:.2g} GB/s)"
        for protocol, rate in rates.items()
        if protocol not in {OURS, BASE}
    )
    numbers = f"{rates[OURS]:.3g} / {rates[BASE]:.3g} GB/s"
    return drawing.Bar(f"{size / MIB:g} MiB", rates[OURS] / rates[BASE], numbers, others)


def main() -> None:
    data = json.loads(Path(sys.argv[1]).read_text())
    draw([Sample(**sample) for sample in data["samples"]], Path(sys.argv[2]))


if __name__ == "__main__":
    main()
