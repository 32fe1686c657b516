"""redis-benchmark, run in turns so that other load on the machine affects all targets alike."""

from __future__ import annotations

import csv
import resource
import statistics
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

CLIENTS = 50
COMMANDS = ("set", "get")

# Requests per command, round and pipeline depth: at most about a second each on a small machine.
REQUESTS = {1: 40_000, 16: 400_000}


class Target(NamedTuple):
    """A benchmark target: a port, and the processes behind it by role."""

    port: int
    pids: dict[str, int]


class Speed(NamedTuple):
    """Medians of all rounds."""

    per_second: float
    p50_ms: float


class Results(NamedTuple):
    """By target and pipeline depth."""

    speed: dict[tuple[str, int, str], Speed]  # also by command
    cpu_us: dict[tuple[str, int], dict[str, float]]  # CPU time per request, by role


def by_turns(targets: dict[str, Target], rounds: int, scale: float, done: Callable[[], None]) -> Results:
    """Run SET and GET with 50 clients against each target. `done` is called after each run.

    Raises subprocess.CalledProcessError, OSError.
    """
    speeds: dict[tuple[str, int, str], list[Speed]] = {}
    cpus: dict[tuple[str, int], list[dict[str, float]]] = {}
    for turn in range(rounds):
        for pipeline, requests in REQUESTS.items():
            count = int(requests * scale)
            for name in list(targets) if turn % 2 == 0 else list(reversed(targets)):
                before = _cpu_us(targets[name])
                for command, speed in _benchmark(targets[name].port, pipeline, count).items():
                    speeds.setdefault((name, pipeline, command), []).append(speed)
                used = _cpu_us(targets[name])
                per_request = {role: (used[role] - before[role]) / count / len(COMMANDS) for role in used}
                cpus.setdefault((name, pipeline), []).append(per_request)
                done()
    return Results(
        {key: Speed(*map(statistics.median, zip(*each, strict=True))) for key, each in speeds.items()},
        {
            key: {role: statistics.median(one[role] for one in each) for role in each[0]}
            for key, each in cpus.items()
        },
    )


def _benchmark(port: int, pipeline: int, requests: int) -> dict[str, Speed]:
    out = subprocess.run(
        [
            "redis-benchmark", "-p", str(port), "-c", str(CLIENTS), "-P", str(pipeline), "-n", str(requests),
            "-t", ",".join(COMMANDS), "--csv",
        ],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    # Progress may be printed on the same line, before the header.
    rows = csv.DictReader(out[out.index('"test"') :].splitlines())
    return {row["test"]: Speed(float(row["rps"]), float(row["p50_latency_ms"])) for row in rows}


def _cpu_us(target: Target) -> dict[str, float]:
    """CPU time used so far, by role; redis-benchmark's is that of our terminated children."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = {"redis-benchmark": (ended.ru_utime + ended.ru_stime) * 1e6}
    for role, pid in target.pids.items():
        threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
        used[role] = sum(int(thread.read_text().split()[0]) for thread in threads) / 1e3
    return used
