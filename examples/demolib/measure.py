"""redis-benchmark, by turns, so that what else the machine does falls on all alike."""

from __future__ import annotations

import csv
import statistics
import subprocess
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CLIENTS = 50


class Work(NamedTuple):
    """One cell of the table."""

    command: str
    pipeline: int


class Result(NamedTuple):
    per_second: float
    p50_ms: float
    p99_ms: float


# Requests per round and pipeline depth: about a second and a half each on a small machine.
REQUESTS = {1: 60_000, 16: 600_000}


def benchmark(port: int, pipeline: int, requests: int) -> dict[Work, Result]:
    """SET and GET with 50 clients. Raises subprocess.CalledProcessError, OSError."""
    out = subprocess.run(
        [
            "redis-benchmark", "-p", str(port), "-c", str(CLIENTS), "-P", str(pipeline), "-n", str(requests),
            "-t", "set,get", "--csv",
        ],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    # Progress may be printed on the same line, before the header.
    lines = out[out.index('"test"') :].splitlines()
    return {
        Work(row["test"], pipeline): Result(
            float(row["rps"]), float(row["p50_latency_ms"]), float(row["p99_latency_ms"])
        )
        for row in csv.DictReader(lines)
    }


def by_turns(
    ports: dict[str, int], rounds: int, scale: float, done: Callable[[], None]
) -> dict[tuple[str, Work], Result]:
    """Medians of all rounds for each name in `ports`. `done` is called after each run."""
    collected: dict[tuple[str, Work], list[Result]] = {}
    for turn in range(rounds):
        for pipeline, requests in REQUESTS.items():
            names = list(ports) if turn % 2 == 0 else list(reversed(ports))
            for name in names:
                for work, result in benchmark(ports[name], pipeline, int(requests * scale)).items():
                    collected.setdefault((name, work), []).append(result)
                done()
    return {key: _median(results) for key, results in collected.items()}


def _median(results: Iterable[Result]) -> Result:
    return Result(*(statistics.median(column) for column in zip(*results, strict=True)))
