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

from measure import MIB, Sample
from report import report
from rounds import Outcome, in_a_process, in_this_process

#: A run whose figures may go to the documentation has this many rounds at least.
_WHOLE = 5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=(__doc__ or "").split(":")[0])
    parser.add_argument("--rounds", type=int, default=5, help="clusters of each protocol [5]")
    parser.add_argument(
        "--sizes",
        type=lambda text: [int(float(size) * MIB) for size in text.split(",")],
        default="1,16,64,256",
        help="sizes of arrays in MiB [1,16,64,256]",
    )
    parser.add_argument("--times", type=int, default=6, help="arrays of each size in a round [6]")
    parser.add_argument("--tasks", type=int, default=1000, help="tiny tasks in a round [1000]")
    parser.add_argument(
        "--seconds", type=float, default=3, help="for arrays of one size; then fewer are sent [3]"
    )
    parser.add_argument("--protocols", default="tcp,rdma,ucxx", help="in this order [tcp,rdma,ucxx]")
    parser.add_argument("--limit", type=float, default=50, help="seconds for one protocol in a round [50]")
    parser.add_argument("--output", type=Path, help="write the report here, and JSON beside it")
    parser.add_argument(
        "--docs",
        type=Path,
        help=f"write dask-results.md and dask-transfers.svg there, after {_WHOLE} or more rounds of all",
    )
    one = parser.add_argument_group("one round in this process")
    one.add_argument("--one", metavar="PROTOCOL", help="measure this protocol once")
    one.add_argument("--result", type=Path, help="write what it has measured here, as JSON")
    options = parser.parse_args()
    if options.rounds < 1 or options.times < 1 or options.tasks < 1:
        parser.error("--rounds, --times and --tasks must be at least 1")
    if options.one and not options.result:
        parser.error("--one needs --result FILE")
    return options


def protocols(names: list[str]) -> tuple[list[str], list[str]]:
    """Those that can be used here, and a sentence for each of the others."""
    usable, missing = [], []
    for name in names:
        if name == "ucxx" and importlib.util.find_spec("distributed_ucxx") is None:
            missing.append("`ucxx://` was not measured: distributed-ucxx-cu12 is not installed.")
        else:
            usable.append(name)
    return usable, missing


class Run:
    """All rounds, and their report so far."""

    def __init__(self, names: list[str], notes: list[str]) -> None:
        self.names, self.notes = names, notes
        self.rounds = 0
        self.samples: list[Sample] = []
        self.paths: dict[str, list[object]] = {name: [] for name in names}

    def add(self, name: str, outcome: Outcome) -> None:
        self.samples += outcome.samples
        if outcome.paths is not None:
            self.paths[name].append(outcome.paths)
        if outcome.failure is not None:
            self.notes.append(
                f"`{name}://`, round {self.rounds + 1}: {outcome.failure}. What it had measured counts."
            )
            print(self.notes[-1], file=sys.stderr, flush=True)

    def report(self) -> str:
        return report(self.samples, self.paths, self.rounds, self.notes)

    def write(self, output: Path) -> None:
        output.write_text(self.report())
        data = {"samples": [sample._asdict() for sample in self.samples], "paths": self.paths}
        output.with_suffix(".json").write_text(json.dumps(data, indent=1))

    def document(self, docs: Path) -> None:
        """Into the documentation, if this was a whole run: none that was made to try something."""
        seen = {(sample.protocol, sample.nbytes) for sample in self.samples if sample.what == "transfer"}
        wanted = {(name, size * MIB) for name in ("tcp", "rdma") for size in (1, 16, 64, 256)}
        if self.rounds < _WHOLE or not wanted <= seen:
            print(f"{docs} stays as it is: this was no whole run ({_WHOLE} rounds, all sizes, tcp and rdma).")
            return
        from draw import draw

        (docs / "dask-results.md").write_text(self.report())
        draw(self.samples, docs / "dask-transfers.svg")
        print(f"Written: {docs}/dask-results.md and {docs}/dask-transfers.svg.")


def main() -> int:
    options = arguments()
    if options.one:
        in_this_process(options.one, options, options.result)
        return 0
    sizes = ",".join(f"{size / MIB:g}" for size in options.sizes)
    command = [sys.executable, str(Path(__file__).parent), "--sizes", sizes, "--times", str(options.times)]
    command += ["--tasks", str(options.tasks), "--seconds", str(options.seconds)]
    names, notes = protocols(options.protocols.split(","))
    run = Run(names, notes)
    try:
        for number in range(options.rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                load = os.getloadavg()[0]
                print(f"round {number + 1}: {name}, load {load:.1f}", file=sys.stderr, flush=True)
                run.add(name, in_a_process(name, command, options.limit))
            run.rounds += 1
            if options.output:  # after each round, so that a run may be cut short
                run.write(options.output)
    except KeyboardInterrupt:
        print(f"Interrupted after {run.rounds} rounds.", file=sys.stderr)
        return 130
    print(run.report())
    if options.docs:
        run.document(options.docs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
