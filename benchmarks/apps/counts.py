"""Where the time goes: what one request costs each process, counted, on RDMA and on TCP.

    python -m benchmarks.apps.counts                    the Redis proxy, five numbers of clients, three sizes
    python -m benchmarks.apps.counts --rounds 1 --scale 0.2

Prints a Markdown table of medians. Each cell is front / back.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import NamedTuple

from .proxy import ROLES, Load, Run, Stack, measure, running

LOADS = (
    Load(1, 3, 10_000),
    Load(4, 3, 20_000),
    Load(16, 3, 40_000),
    Load(50, 3, 40_000),
    Load(200, 3, 40_000),
    Load(1, 65_536, 4_000),
    Load(16, 65_536, 8_000),
    Load(1, 1 << 20, 400),
    Load(4, 1 << 20, 800),
)
HEADER = (
    "clients, value",
    "path",
    "requests/s",
    "CPU us",
    "waits",
    "system calls",
    "wake-ups",
    "completions a poll",
    "waited for a CPU us",
)


class Cell(NamedTuple):
    """All runs of a load on one path."""

    runs: list[Run]
    requests: int


def collect(stack: Stack, load: Load, rounds: int) -> dict[str, Cell]:
    """Raises OSError, subprocess.CalledProcessError."""
    runs: dict[str, list[Run]] = {mode: [] for mode in stack.proxies}
    for turn in range(rounds):
        for mode in list(stack.proxies)[:: 1 if turn % 2 == 0 else -1]:
            runs[mode].append(measure(stack.proxies[mode], load))
    return {mode: Cell(of, 2 * load.requests) for mode, of in runs.items()}


def row(load: Load, mode: str, cell: Cell) -> list[str]:
    def per_request(field: str) -> str:
        middle = [
            statistics.median(getattr(run.processes[role], field) / cell.requests for run in cell.runs)
            for role in ROLES
        ]
        return " / ".join(f"{value:.3g}" for value in middle)

    calls = [statistics.median(run.calls[role] / cell.requests for run in cell.runs) for role in ROLES]
    total = {role: [run.engines[role] for run in cell.runs] for role in ROLES}
    events = [sum(one.events for one in total[role]) / len(cell.runs) / cell.requests for role in ROLES]
    found = [
        sum(one.completions for one in total[role])
        / max(1, sum(one.polls - one.empty_polls for one in total[role]))
        for role in ROLES
    ]
    return [
        f"{load.clients}, {size(load.value_bytes)}",
        mode.upper(),
        f"{statistics.median(run.per_second for run in cell.runs):,.0f}",
        per_request("cpu_us"),
        per_request("waits"),
        " / ".join(f"{value:.3g}" for value in calls),
        " / ".join(f"{value:.3g}" for value in events) if mode == "rdma" else "",
        " / ".join(f"{value:.3g}" for value in found) if mode == "rdma" else "",
        per_request("delay_us"),
    ]


def size(count: int) -> str:
    """3 B, 64 KiB, 1 MiB."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count // factor} {unit}"
    return f"{count} B"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each load on each path (default: 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="requests, times this (default: 1)")
    parser.add_argument("--load", type=int, action="append", metavar="N", help="only the Nth load, from 1")
    options = parser.parse_args()
    loads = [LOADS[number - 1] for number in options.load] if options.load else LOADS
    print("|", " | ".join(HEADER), "|")
    print("|", " | ".join("---" if n < 2 else "---:" for n in range(len(HEADER))), "|", flush=True)
    with running() as stack:
        for load in loads:
            scaled = load._replace(requests=max(int(load.requests * options.scale), load.clients))
            for mode, cell in collect(stack, scaled, options.rounds).items():
                print("|", " | ".join(row(load, mode, cell)), "|", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
