"""Draws the transfers of a run of the benchmark: ``python draw.py build/bench-dask.json PICTURE.svg``."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "distributed-aiordma"  # the same picture from the same figures
import matplotlib.pyplot as plt  # noqa: E402

MIB = 1 << 20


def main() -> None:
    samples = json.loads(Path(sys.argv[1]).read_text())["samples"]
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        if sample["what"] == "transfer":
            found[sample["protocol"]][sample["nbytes"]].append(sample["value"] / 1e9)
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for number, (protocol, by_size) in enumerate(found.items()):
        sizes = sorted(by_size)
        middle = [median(by_size[size]) for size in sizes]
        where = [position + 0.26 * (number - (len(found) - 1) / 2) for position in range(len(sizes))]
        bars = axes.bar(where, middle, 0.24, label=f"{protocol}://")
        axes.bar_label(bars, fmt="%.2g", fontsize=8)
        for x, size in zip(where, sizes, strict=True):
            axes.plot([x] * len(by_size[size]), by_size[size], "k.", markersize=2, alpha=0.5)
    axes.set_xticks(range(len(sizes)), [f"{size / MIB:g} MiB" for size in sizes])
    axes.set_ylabel("worker to worker, GB/s")
    axes.set_title("Arrays between two workers of one host: medians, and each transfer", fontsize=10)
    axes.legend()
    figure.savefig(sys.argv[2], metadata={"Date": None})


if __name__ == "__main__":
    main()
