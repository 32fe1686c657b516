"""`python -m tests.card DEVICE`: what a card is, whether the tests pass, and how fast it is, in one file."""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path

from tests.card.steps import BENCHMARK, SUITE, Step, run, steps
from tests.card.tarball import pack

ROOT = Path(__file__).parents[2]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.card",
        description="Runs aiordma's tests and benchmarks on an RDMA device of this machine, both ends on it,"
        " and packs what they say. Nothing leaves the machine: the last line names the file to send.",
    )
    parser.add_argument("device", help="its name in /sys/class/infiniband, such as mlx5_0")
    parser.add_argument("--suite", default=SUITE, help=f"arguments of pytest [{SUITE}]")
    parser.add_argument("--benchmark", default=BENCHMARK, help=f"of python -m benchmarks [{BENCHMARK}]")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for each step [3600]")
    parser.add_argument("-o", "--output", type=Path, default=Path("build/card"), help="folder [build/card]")
    return parser.parse_args()


def main() -> int:
    options = _options()
    folder: Path = options.output / f"{options.device}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    folder.mkdir(parents=True)
    done: list[tuple[Step, str]] = []
    for step in steps(options.device, options.suite, options.benchmark):
        print(f"== {step.name}: {step.what}", flush=True)
        ended = run(step, folder, ROOT, options.limit)
        print(f"   {ended}", flush=True)
        done.append((step, ended))
    made = pack(folder, done)
    print(f"{made}: read it, then attach it to an issue")
    return 0 if all(ended.startswith(("ended well", "left out")) for _, ended in done) else 1


if __name__ == "__main__":
    sys.exit(main())
