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
import signal
import subprocess
import sys
from pathlib import Path

from measure import MIB, Sample, measure
from report import report


def protocols(names: list[str]) -> tuple[list[str], list[str]]:
    """Those that can be used here, and a sentence for each of the others."""
    usable, missing = [], []
    for name in names:
        if name == "ucxx" and importlib.util.find_spec("distributed_ucxx") is None:
            missing.append("`ucxx://` was not measured: distributed-ucxx-cu12 is not installed.")
        else:
            usable.append(name)
    return usable, missing


def one_round(
    protocol: str, sizes: list[int], options: argparse.Namespace
) -> tuple[list[Sample], object] | None:
    """In a process of its own, which is ended with its workers when it takes too long; None: it did."""
    command = [sys.executable, str(Path(__file__).parent), "--one", protocol, "--sizes", options.sizes]
    command += ["--times", str(options.times), "--tasks", str(options.tasks)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            output, _ = process.communicate(timeout=options.limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None
    if process.returncode:
        raise SystemExit(f"the round of {protocol} failed (its reason is above)")
    found = json.loads(output)
    return [Sample(*sample) for sample in found["samples"]], found["paths"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("--rounds", type=int, default=5, help="clusters of each protocol [5]")
    parser.add_argument("--sizes", default="1,16,64,256", help="sizes of arrays in MiB [1,16,64,256]")
    parser.add_argument("--times", type=int, default=6, help="arrays of each size in a round [6]")
    parser.add_argument("--tasks", type=int, default=2000, help="tiny tasks in a round [2000]")
    parser.add_argument("--protocols", default="tcp,rdma,ucxx", help="in this order [tcp,rdma,ucxx]")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one protocol in a round [300]")
    parser.add_argument("--output", type=Path, help="write the report here, and JSON beside it")
    parser.add_argument("--one", metavar="PROTOCOL", help="measure this protocol once, and print JSON")
    options = parser.parse_args()
    sizes = [int(float(size) * MIB) for size in options.sizes.split(",")]
    if options.one:
        measured, seen = measure(options.one, sizes, options.times, options.tasks)
        print(json.dumps({"samples": measured, "paths": seen}))
        return 0
    names, notes = protocols(options.protocols.split(","))
    samples: list[Sample] = []
    paths: dict[str, list[object]] = {name: [] for name in names}
    for number in range(options.rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            print(f"round {number + 1}: {name}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
            found = one_round(name, sizes, options)
            if found is None:
                notes.append(f"`{name}://` did not end round {number + 1} within {options.limit:g} s.")
                continue
            samples += found[0]
            paths[name].append(found[1])
        text = report(samples, paths, number + 1, notes)
        if options.output:  # after each round, so that a run may be cut short
            options.output.write_text(text)
            data = {"samples": [sample._asdict() for sample in samples], "paths": paths}
            options.output.with_suffix(".json").write_text(json.dumps(data, indent=1))
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
