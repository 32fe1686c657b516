"""The Redis proxy of the examples on RDMA and on TCP, loaded by redis-benchmark."""

from __future__ import annotations

import contextlib
import csv
import subprocess
import tempfile
from typing import TYPE_CHECKING, NamedTuple

from demolib.stack import Proxy, start_redis

from ..processes import Reading, read_process
from .counting import EngineCounts, read_engines, system_calls

if TYPE_CHECKING:
    from collections.abc import Iterator

ROLES = ("front", "back")


class Load(NamedTuple):
    """What redis-benchmark does: SETs, then as many GETs."""

    clients: int
    value_bytes: int
    requests: int
    pipeline: int = 1


class Run(NamedTuple):
    """One run of a load, by role where a process is meant."""

    per_second: float
    processes: dict[str, Reading]
    engines: dict[str, EngineCounts]
    calls: dict[str, int]  # system calls


class Stack(NamedTuple):
    """Two proxies before one redis-server."""

    proxies: dict[str, Proxy]
    redis_port: int


@contextlib.contextmanager
def running() -> Iterator[Stack]:
    """Start redis-server and both proxies; end them with the block. Raises ProgramError, OSError."""
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="aiordma-apps-"))
        server, redis_port = start_redis(directory)
        stack.callback(server.stop)
        proxies = {mode: Proxy(mode, redis_port) for mode in ("rdma", "tcp")}
        for proxy in proxies.values():
            stack.callback(proxy.stop)
            proxy.start()
        path = proxies["rdma"].front.wait_for("travel by").partition("travel by ")[2]
        if path != "rdma":
            raise RuntimeError(f"the streams of the proxy travel by {path}: there is nothing to compare")
        yield Stack(proxies, redis_port)


def pids(proxy: Proxy) -> dict[str, int]:
    return {role: getattr(proxy, role).process.pid for role in ROLES}


def measure(proxy: Proxy, load: Load) -> Run:
    """Raises OSError, subprocess.CalledProcessError."""
    ids = pids(proxy)
    engines = {role: read_engines(pid) for role, pid in ids.items()}
    before = {role: read_process(pid) for role, pid in ids.items()}
    with system_calls(ids) as calls:
        per_second = benchmark(proxy.front_port, load)
    processes = {role: read_process(pid) - before[role] for role, pid in ids.items()}
    return Run(per_second, processes, {r: read_engines(pid) - engines[r] for r, pid in ids.items()}, calls)


def benchmark(port: int, load: Load) -> float:
    """Requests per second over SETs and GETs. Raises subprocess.CalledProcessError."""
    command = ["redis-benchmark", "-p", str(port), "-c", str(load.clients), "-P", str(load.pipeline)]
    size = ["-n", str(load.requests), "-d", str(load.value_bytes), "-t", "set,get", "--csv"]
    out = subprocess.run([*command, *size], capture_output=True, text=True, check=True).stdout
    # Progress may be printed on the same line, before the header.
    rows = list(csv.DictReader(out[out.index('"test"') :].splitlines()))
    return len(rows) / sum(1 / float(row["rps"]) for row in rows)
