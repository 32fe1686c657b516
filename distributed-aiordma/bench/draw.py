"""Draws the transfers of a run of the benchmark; also ``python draw.py RESULTS.json PICTURE.svg``."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "distributed-aiordma"  # the same picture from the same figures
import matplotlib.pyplot as plt  # noqa: E402
from measure import MIB, Sample  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["draw"]

#: Of a group of bars, one for each protocol.
_GROUP_WIDTH = 0.78


def draw(samples: Sequence[Sample], picture: Path) -> None:
    """Bars of the medians for each size, with a point for each transfer, as SVG."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        if sample.what == "transfer":
            found[sample.protocol][sample.nbytes].append(sample.value / 1e9)
    sizes = sorted({size for by_size in found.values() for size in by_size})
    step = _GROUP_WIDTH / max(1, len(found))
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for number, (protocol, by_size) in enumerate(found.items()):
        where = {size: sizes.index(size) + step * (number - (len(found) - 1) / 2) for size in sorted(by_size)}
        middle = [median(by_size[size]) for size in where]
        bars = axes.bar(where.values(), middle, step * 0.92, label=f"{protocol}://")
        axes.bar_label(bars, fmt="%.2g", fontsize=8)
        for size, x in where.items():
            axes.plot([x] * len(by_size[size]), by_size[size], "k.", markersize=2, alpha=0.5)
    axes.set_xticks(range(len(sizes)), [f"{size / MIB:g} MiB" for size in sizes])
    axes.set_ylabel("worker to worker, GB/s")
    axes.set_title("Arrays between two workers of one host: medians, and each transfer", fontsize=10)
    axes.legend()
    figure.savefig(picture, format="svg", metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    data = json.loads(Path(sys.argv[1]).read_text())
    draw([Sample(**sample) for sample in data["samples"]], Path(sys.argv[2]))


if __name__ == "__main__":
    main()
