"""What applications gain from RDMA: whole programs with their own work, on RDMA and on TCP by turns.

    python -m benchmarks.apps                            all rows; rewrites docs/benchmarks-apps-results.md
    python -m benchmarks.apps --rounds 2 --only direct   some rows; prints them

A ratio is the median of the rounds' ratios. CPU time is that of the processes with an end of the connection.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.machine import describe

from .suite import GROUPS, Rounds, outcomes
from .turns import HEADER, RULE, Outcome, table_row

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks-apps-results.md"


def page(found: list[Outcome], size: Rounds, machine: dict[str, object], load_after: float) -> str:
    """The results as Markdown."""
    return (
        f"{machine['cpu']}, {machine['cpus']} CPUs, {machine['system']}, kernel {machine['kernel']}, Python "
        f"{machine['python']}; revision {machine['revision']}. {size.rounds} rounds; load before: "
        f"{machine['load_before']:.1f}, after: {load_after:.1f}.\n\n"
        f"{HEADER}{RULE}{''.join(map(table_row, found))}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="runs of each row on each path (default: 5)")
    parser.add_argument("--scale", type=float, default=1.0, help="length of a run, times this (default: 1)")
    parser.add_argument("--only", choices=GROUPS, action="append", help="these rows; may be given again")
    options = parser.parse_args()
    size = Rounds(options.rounds, options.scale)
    machine = describe()
    print(HEADER + RULE, end="", flush=True)
    found = outcomes(
        size, tuple(options.only or GROUPS), lambda outcome: print(table_row(outcome), end="", flush=True)
    )
    if not options.only:
        RESULTS.write_text(page(found, size, machine, os.getloadavg()[0]), encoding="utf-8")
        print(f"wrote {RESULTS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
