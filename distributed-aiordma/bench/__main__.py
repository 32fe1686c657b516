"""Dask over ``rdma://`` beside other protocols, by turns: ``python distributed-aiordma/bench``.

Each round starts a cluster of two workers for each protocol in turn, and measures start-up, transfers between
the workers (as the receiving worker logs them), scatter and gather, and tiny tasks with the CPU time of all
processes. The report has medians of all rounds and their ratios to ``tcp://``, beside what is aimed at.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from pathlib import Path

from measure import MIB, Sample, measure
from report import report


def protocols(names: list[str]) -> tuple[list[str], list[str]]:
    """Those that can be used here, and a sentence for each of the others."""
    usable, missing = [], []
    for name in names:
        if name == "ucxx" and importlib.util.find_spec("distributed_ucxx") is None:
            missing.append("ucxx was not measured: distributed-ucxx-cu12 is not installed.")
        else:
            usable.append(name)
    return usable, missing


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("--rounds", type=int, default=5, help="clusters of each protocol [5]")
    parser.add_argument("--sizes", default="1,16,64,256", help="sizes of arrays in MiB [1,16,64,256]")
    parser.add_argument("--times", type=int, default=6, help="arrays of each size in a round [6]")
    parser.add_argument("--tasks", type=int, default=2000, help="tiny tasks in a round [2000]")
    parser.add_argument("--protocols", default="tcp,rdma,ucxx", help="in this order [tcp,rdma,ucxx]")
    parser.add_argument("--output", type=Path, help="write the report here, and JSON beside it")
    options = parser.parse_args()
    sizes = [int(float(size) * MIB) for size in options.sizes.split(",")]
    names, missing = protocols(options.protocols.split(","))
    samples: list[Sample] = []
    paths: dict[str, list[object]] = {name: [] for name in names}
    for number in range(options.rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            print(f"round {number + 1}: {name}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
            measured, seen = measure(name, sizes, options.times, options.tasks)
            samples += measured
            paths[name].append(seen)
    text = report(samples, paths, options.rounds, missing)
    print(text)
    if options.output:
        options.output.write_text(text)
        options.output.with_suffix(".json").write_text(
            json.dumps({"samples": [sample._asdict() for sample in samples], "paths": paths}, indent=1)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
