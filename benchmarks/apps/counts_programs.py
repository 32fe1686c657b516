"""What one request costs the server of other programs, counted, under `aiordma run` and without.

    python -m benchmarks.apps.counts_programs
    python -m benchmarks.apps.counts_programs --rounds 1 --seconds 0.5

Prints a Markdown table of medians.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import TYPE_CHECKING, NamedTuple

from ..processes import Reading, read_process
from .counting import read_engines, system_calls
from .suite import TRIES, command, driving, serving
from .turns import RDMA, TCP

if TYPE_CHECKING:
    from demolib.processes import Program

ROWS = (("uvicorn", 1), ("uvicorn", 16), ("aiohttp", 1), ("aiohttp", 16), ("websockets", 1), ("grpclib", 1))
HEADER = ("program, connections", "path", "requests/s", "CPU us", "waits", "system calls", "wake-ups")


class Run(NamedTuple):
    """One run of a client, and what its server did meanwhile."""

    path: str
    per_second: float
    requests: int
    server: Reading
    #: events read from the completion channel
    events: int
    calls: int


def measure(server: Program, kind: str, connections: int, path: str, seconds: float) -> Run:
    """Raises OSError, RuntimeError."""
    options = ["--connections", str(connections), "--seconds", str(seconds)]
    pid = server.process.pid
    with driving(server, [*command(path, "drive"), kind], options) as work:
        engines, before = read_engines(pid), read_process(pid)
        with system_calls({"server": pid}) as calls:
            out = work()
            used = read_process(pid) - before
        events = (read_engines(pid) - engines).events
    return Run(out["path"], out["per_second"], out["requests"], used, events, calls["server"])


def on_its_path(server: Program, kind: str, connections: int, path: str, seconds: float) -> Run:
    """On a busy machine a negotiation may take too long, and goes on by TCP: again."""
    for _ in range(TRIES):
        run = measure(server, kind, connections, path, seconds)
        if run.path == path:
            return run
    raise RuntimeError(f"the connections of {kind} went by {run.path}, not by {path}, {TRIES} times")


def row(kind: str, connections: int, path: str, runs: list[Run]) -> list[str]:
    def middle(values: list[float]) -> str:
        return f"{statistics.median(values):.3g}"

    return [
        f"{kind}, {connections}",
        path.upper(),
        f"{statistics.median(run.per_second for run in runs):,.0f}",
        middle([run.server.cpu_us / run.requests for run in runs]),
        middle([run.server.waits / run.requests for run in runs]),
        middle([run.calls / run.requests for run in runs]),
        middle([run.events / run.requests for run in runs]) if path == RDMA else "",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each row on each path (default: 3)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run (default: 1)")
    options = parser.parse_args()
    print("|", " | ".join(HEADER), "|")
    print("|", " | ".join("---" if n < 2 else "---:" for n in range(len(HEADER))), "|", flush=True)
    for kind, connections in ROWS:
        runs: dict[str, list[Run]] = {RDMA: [], TCP: []}
        with serving(RDMA, kind) as by_rdma, serving(TCP, kind) as by_tcp:
            servers = {RDMA: by_rdma, TCP: by_tcp}
            for _ in range(options.rounds):
                for path, server in servers.items():
                    runs[path].append(on_its_path(server, kind, connections, path, options.seconds))
        for path, of in runs.items():
            print("|", " | ".join(row(kind, connections, path, of)), "|", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
