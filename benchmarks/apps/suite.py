"""The rows of the table of applications: what each measures, and what it should reach."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from demolib.processes import Program
from demolib.valkey import Valkey, start_valkey

from ..processes import read_process
from .proxy import ROLES, Load, Stack, benchmark, pids, running
from .short import short_rows
from .turns import RDMA, TCP, Outcome, Sample, by_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SMALL, PROXY_CPU = 3, True
PLAIN = [sys.executable]
AIORDMA_RUN = [sys.executable, "-m", "aiordma", "run"]


class Rounds(NamedTuple):
    """How much is measured."""

    rounds: int
    scale: float

    def requests(self, count: int) -> int:
        return max(int(count * self.scale), 64)

    @property
    def seconds(self) -> float:
        return max(1.5 * self.scale, 0.1)


# ---- the Redis proxy -------------------------------------------------------------------------------------

PROXY_ROWS = [
    ("proxy, 1 client, 3 B", 1.2, [Load(1, SMALL, 5_000)], False),
    ("proxy, 50 clients, 3 B", 1.0, [Load(50, SMALL, 20_000)], PROXY_CPU),
    ("proxy, 200 clients, 3 B", 1.0, [Load(200, SMALL, 20_000)], PROXY_CPU),
    ("proxy, 50 clients, 3 B, 16 in a pipeline", 1.0, [Load(50, SMALL, 100_000, 16)], PROXY_CPU),
    ("proxy, 200 clients, 3 B, 16 in a pipeline", 1.0, [Load(200, SMALL, 100_000, 16)], PROXY_CPU),
    ("proxy, 64 KiB, 1 and 16 clients", 1.2, [Load(1, 65_536, 2_000), Load(16, 65_536, 4_000)], False),
    ("proxy, 1 MiB, 1 and 4 clients", 1.2, [Load(1, 1 << 20, 200), Load(4, 1 << 20, 400)], False),
]


def proxy_rows(stack: Stack, size: Rounds) -> Iterator[Outcome]:
    for title, goal, loads, cpu_goal in PROXY_ROWS:
        scaled = [load._replace(requests=size.requests(load.requests)) for load in loads]
        yield by_turns(title, goal, size.rounds, partial(_proxy, stack, scaled), cpu_goal=cpu_goal)


def _proxy(stack: Stack, loads: list[Load], path: str) -> Sample:
    """The geometric mean over the loads, and the CPU time of front and back over all requests."""
    proxy = stack.proxies[path]
    before = {role: read_process(pid) for role, pid in pids(proxy).items()}
    rate = 1.0
    for load in loads:
        rate *= benchmark(proxy.front_port, load) ** (1 / len(loads))
    used = {role: read_process(pid) - before[role] for role, pid in pids(proxy).items()}
    requests = sum(2 * load.requests for load in loads)
    return Sample(rate, sum(used[role].cpu_us for role in ROLES) / requests)


DIRECT_ROWS = [
    ("Python client without the front, 64 in flight on 1 stream", 2.0, 1, 64, 40_000),
    ("Python client without the front, 64 in flight on 64 streams", 1.5, 64, 64, 20_000),
    ("Python client without the front, one at a time", 1.3, 1, 1, 5_000),
]


def direct_rows(stack: Stack, size: Rounds) -> Iterator[Outcome]:
    for title, goal, streams, in_flight, requests in DIRECT_ROWS:
        options = ["--streams", str(streams), "--in-flight", str(in_flight)]
        options += ["--requests", str(size.requests(requests))]
        yield by_turns(title, goal, size.rounds, partial(_direct, stack, options))


def _direct(stack: Stack, options: list[str], path: str) -> Sample:
    proxy = stack.proxies[path]
    back = proxy.back.process.pid
    before = read_process(back)
    command = [sys.executable, "-m", "benchmarks.apps.direct", f"127.0.0.1:{proxy.back_port}", path, *options]
    out = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    used = read_process(back) - before
    return Sample(out["per_second"], out["cpu_us"] + used.cpu_us / out["requests"])


# ---- programs under `aiordma run` -------------------------------------------------------------------------

MEGABYTE = 1 << 20
PROGRAM_ROWS = [
    ("aiohttp, GET of 64 B, 1 connection", 1.4, "aiohttp", 1, 64),
    ("aiohttp, GET of 64 B, 16 connections", 1.2, "aiohttp", 16, 64),
    ("aiohttp, GET of 1 MiB, 1 connection", 2.0, "aiohttp", 1, MEGABYTE),
    ("uvicorn, GET of 64 B, 1 connection", 1.4, "uvicorn", 1, 64),
    ("uvicorn, GET of 64 B, 16 connections", 1.2, "uvicorn", 16, 64),
    ("uvicorn, GET of 1 MiB, 1 connection", 2.0, "uvicorn", 1, MEGABYTE),
    ("websockets, echo of 64 B, one at a time", 1.4, "websockets", 1, 64),
    ("grpclib, unary call of 64 B, one at a time", 1.4, "grpclib", 1, 64),
    ("sanic, GET of 1 MiB, 16 connections", 1.0, "sanic", 16, MEGABYTE),
    ("sanic, POST of 1 MiB and the same back, 16 connections", 1.0, "sanic-post", 16, MEGABYTE),
    ("asyncua, read of a variable of 1 MiB, 16 connections", 1.0, "asyncua", 16, MEGABYTE),
    ("opening 500 connections, an echo of 64 B on each", 1.0, "connects", 500, 64),
]
#: Both processes on the same CPU: no time is idle that polling could use.
ONE_CPU_ROWS = [
    ("aiohttp, GET of 64 B, 1 connection, both on one CPU", 1.0, "aiohttp", 1, 64),
    ("aiohttp, GET of 64 B, 16 connections, both on one CPU", 1.0, "aiohttp", 16, 64),
    ("websockets, echo of 64 B, one at a time, both on one CPU", 1.0, "websockets", 1, 64),
]


def program_rows(size: Rounds) -> Iterator[Outcome]:
    one_cpu = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]
    for rows, prefix in ((PROGRAM_ROWS, []), (ONE_CPU_ROWS, one_cpu)):
        for title, goal, kind, connections, count in rows:
            with contextlib.ExitStack() as stack:
                servers = {path: stack.enter_context(serving(path, kind, prefix)) for path in (RDMA, TCP)}
                client = ["--connections", str(connections), "--size", str(count)]
                client += ["--seconds", str(size.seconds)]
                work = partial(_program, servers, kind, client, prefix)
                yield by_turns(title, goal, size.rounds, work, cpu_goal=bool(prefix))


def command(path: str, role: str) -> list[str]:
    """A server or client of `.programs`, under `aiordma run` or not."""
    return [*(AIORDMA_RUN if path == RDMA else PLAIN), "-m", "benchmarks.apps.programs", role]


@contextlib.contextmanager
def serving(path: str, kind: str, prefix: Sequence[str] = ()) -> Iterator[Program]:
    server = Program(*prefix, *command(path, "serve"), kind, ready="ready ")
    try:
        yield server
    finally:
        server.stop()


#: Runs of a client until one is on the path that it is to measure: on a busy machine a negotiation may take
#: too long, and goes on by TCP.
TRIES = 5


def _program(
    servers: dict[str, Program], kind: str, options: list[str], prefix: Sequence[str], path: str
) -> Sample:
    for _ in range(TRIES):
        sample, went_by = _client(servers[path], [*prefix, *command(path, "drive"), kind], options)
        if went_by == path:
            return sample
    raise RuntimeError(f"the connections of {kind} went by {went_by}, not by {path}, {TRIES} times")


@contextlib.contextmanager
def driving(
    server: Program, command: list[str], options: list[str]
) -> Iterator[Callable[[], dict[str, Any]]]:
    """A client that has connected. Called, it sends its requests, and returns what it says of them.

    Raises RuntimeError: it could not connect.
    """
    port = server.first_line.rpartition(" ")[2]
    client = subprocess.Popen(
        [*command, port, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with client:
        assert client.stdin is not None
        assert client.stdout is not None
        given, printed = client.stdin, client.stdout
        if printed.readline() != "begin\n":
            raise RuntimeError(f"{shlex.join(command)} failed: {printed.read()}")

        def work() -> dict[str, Any]:
            given.write("\n")
            given.flush()
            results: dict[str, Any] = json.loads(printed.readline())
            return results

        yield work


def _client(server: Program, command: list[str], options: list[str]) -> tuple[Sample, str]:
    """One run, and the path of its connections."""
    with driving(server, command, options) as work:
        before = read_process(server.process.pid)
        out = work()
        used = read_process(server.process.pid) - before
    return Sample(out["per_second"], out["cpu_us"] + used.cpu_us / out["requests"]), out["path"]


# ---- Valkey by its own RDMA protocol -----------------------------------------------------------------------

#: With its own client, and with redis-py, of which Python takes most of the time.
VALKEY_ROWS = [
    ("Valkey by its own RDMA protocol, one at a time, 64 B", 1.4, "streams", 1, 64, 10_000),
    ("Valkey by its own RDMA protocol, 64 in flight, 64 B", 1.1, "streams", 64, 64, 40_000),
    ("Valkey by its own RDMA protocol, one at a time, 1 MiB", 1.5, "streams", 1, MEGABYTE, 600),
    ("the same with redis-py, one at a time, 64 B", 1.4, "redis", 1, 64, 4_000),
    ("the same with redis-py, 64 in flight on 64 connections, 64 B", 1.1, "redis", 64, 64, 6_400),
    ("the same with redis-py, one at a time, 1 MiB", 1.5, "redis", 1, MEGABYTE, 600),
]


def valkey_rows(size: Rounds) -> Iterator[Outcome]:
    """The server on one CPU and the client on another, if there are two."""
    cpus = sorted(os.sched_getaffinity(0))
    for title, goal, client, in_flight, count, requests in VALKEY_ROWS:
        # A server for each row: it keeps something of every connection by RDMA that it has had.
        with tempfile.TemporaryDirectory(prefix="aiordma-bench-") as directory:
            server = start_valkey(directory, cpu=cpus[0])
            options = ["--client", client, "--in-flight", str(in_flight), "--size", str(count)]
            options += ["--requests", str(size.requests(requests)), "--cpu", str(cpus[-1])]
            try:
                yield by_turns(title, goal, size.rounds, partial(_valkey, server, options))
            finally:
                server.program.stop()


def _valkey(server: Valkey, options: list[str], path: str) -> Sample:
    port = server.rdma_port if path == RDMA else server.tcp_port
    command = [sys.executable, "-m", "benchmarks.apps.valkey", str(port), path, *options]
    command += ["--server", str(server.program.process.pid)]
    out = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return Sample(out["per_second"], out["cpu_us"])


# ---- all ---------------------------------------------------------------------------------------------------

GROUPS = ("proxy", "direct", "programs", "short", "valkey")


def outcomes(size: Rounds, groups: tuple[str, ...], done: Callable[[Outcome], None]) -> list[Outcome]:
    """Raises OSError, RuntimeError, ProgramError, subprocess.CalledProcessError."""
    found: list[Outcome] = []

    def keep(rows: Iterator[Outcome]) -> None:
        for outcome in rows:
            found.append(outcome)
            done(outcome)

    if {"proxy", "direct"} & set(groups):
        with running() as stack:
            if "proxy" in groups:
                keep(proxy_rows(stack, size))
            if "direct" in groups:
                keep(direct_rows(stack, size))
    if "programs" in groups:
        keep(program_rows(size))
    if "short" in groups:
        keep(short_rows(size.rounds))
    if "valkey" in groups:
        keep(valkey_rows(size))
    return found
