"""A real Redis behind the RDMA proxy: checked with redis-py, measured with redis-benchmark (`make demo`).

Starts redis-server and two pairs of redis_proxy.py, one on RDMA and one on TCP, on free ports of this
machine. Checks that replies are right and that the data uses RDMA. Then runs redis-benchmark through
both proxies in turn and prints the medians. The demo cleans up after itself; Ctrl-C stops everything
at any time.
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import ExitStack
from pathlib import Path

import redis
from demolib.checks import CHECKS
from demolib.measure import CLIENTS, COMMANDS, REQUESTS, Results, Target, by_turns
from demolib.processes import ProgramError
from demolib.stack import Proxy, start_redis
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

SCANNER = Path(__file__).parent / "proxy" / "scan.py"
TARGETS = DIRECT, TCP, RDMA = "no proxy", "proxy on TCP", "proxy on RDMA"
console = Console(highlight=False)


def compile_scanner() -> None:
    """Compile the proxy's scanner if Cython is installed; otherwise it runs as plain Python."""
    if importlib.util.find_spec("Cython") is not None:
        subprocess.run([sys.executable, "-m", "Cython.Build.Cythonize", "-i", "-q", str(SCANNER)], check=True)


def prove(proxy: Proxy, redis_port: int) -> None:
    """Run all checks in RESP2 and RESP3, then show the path the data took. Raises AssertionError."""
    direct = redis.Redis(port=redis_port, protocol=2, single_connection_client=True)
    for check in CHECKS:
        for protocol in (2, 3):
            with redis.Redis(port=proxy.front_port, protocol=protocol) as proxied:
                direct.flushall()
                try:
                    check(proxied, direct)
                except AssertionError as exc:
                    line = traceback.extract_tb(exc.__traceback__)[-1].line
                    raise AssertionError(f"{check.__name__} in RESP{protocol}: {str(exc) or line}") from exc
        console.print(f"  [green]ok[/]  {check.__name__.replace('_', ' ')}: {check.__doc__}", soft_wrap=True)
    path = proxy.front.wait_for("travel by").partition("travel by ")[2]
    stats = direct.info("stats")
    direct.close()
    moved = stats["total_net_input_bytes"] + stats["total_net_output_bytes"]
    tcp = proxy.tcp_bytes()
    assert path == "rdma", f"the streams travel by {path}"
    assert tcp * 100 < moved, f"{tcp} of {moved} bytes travelled by TCP between front and back"
    console.print("  [green]ok[/]  path: the streams between front and back travel by [bold]rdma[/]")
    console.print(f"      (Redis moved {moved:,} bytes, TCP between front and back {tcp:,} to negotiate)")


def speed_table(results: Results) -> Table:
    title = f"redis-benchmark, {CLIENTS} clients: requests per second, p50 in ms"
    table = _table(title, "command", *TARGETS, "RDMA / TCP")
    for pipeline in REQUESTS:
        for command in map(str.upper, COMMANDS):
            speeds = [results.speed[name, pipeline, command] for name in TARGETS]
            table.add_row(
                f"{command} -P {pipeline}",
                *(f"{speed.per_second:,.0f}  {speed.p50_ms:.2f}" for speed in speeds),
                f"[bold]{speeds[2].per_second / speeds[1].per_second:.2f}x[/]",
            )
    return table


def explanation(results: Results) -> str:
    """What the last column means, above all where RDMA loses."""
    ratios = [
        results.speed[RDMA, pipeline, command].per_second / results.speed[TCP, pipeline, command].per_second
        for pipeline in REQUESTS
        for command in map(str.upper, COMMANDS)
    ]
    slower = sum(ratio < 1 for ratio in ratios)
    if not slower:
        return f"RDMA is the faster path for all {len(ratios)} commands."
    return (
        f"RDMA is slower than TCP for {slower} of {len(ratios)} commands. On one machine without a card that "
        "is to be expected: both ends, Redis and the benchmark share its processors, the software device "
        "computes what a card does by itself, and TCP crosses no network. See docs/benchmarks.md for where "
        "RDMA wins."
    )


def cpu_table(results: Results) -> Table:
    """Tabulate the CPU time per process: on a busy machine the sum limits the rate."""
    roles = ("redis-benchmark", "front", "back", "redis-server")
    table = _table("CPU time per request in us", "", *roles, "sum")
    for (name, pipeline), cpu in sorted(results.cpu_us.items(), key=lambda item: item[0][1]):
        cells = [f"{cpu[role]:.2f}" if role in cpu else "-" for role in roles]
        table.add_row(f"{name} -P {pipeline}", *cells, f"{sum(cpu.values()):.2f}")
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def run(rounds: int, scale: float) -> None:
    """Run the demo. Raises what its parts raise."""
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="aiordma-demo-"))
        server, redis_port = start_redis(directory)
        stack.callback(server.stop)
        proxies = {mode: Proxy(mode, redis_port) for mode in ("rdma", "tcp")}
        for proxy in proxies.values():
            stack.callback(proxy.stop)
            proxy.start()
        console.print(
            f"[bold]redis-server[/] on port {redis_port} (pid {server.process.pid}), "
            f"RDMA proxy on {proxies['rdma'].front_port}, TCP proxy on {proxies['tcp'].front_port}"
        )
        prove(proxies["rdma"], redis_port)
        redis_pid = {"redis-server": server.process.pid}
        targets = {DIRECT: Target(redis_port, redis_pid)}
        for name, proxy in ((TCP, proxies["tcp"]), (RDMA, proxies["rdma"])):
            pids = {"front": proxy.front.process.pid, "back": proxy.back.process.pid, **redis_pid}
            targets[name] = Target(proxy.front_port, pids)
        with Progress(console=console, transient=True) as progress:
            bar = progress.add_task("redis-benchmark", total=rounds * len(targets) * len(REQUESTS))
            results = by_turns(targets, rounds, scale, lambda: progress.advance(bar))
        console.print(speed_table(results))
        console.print(explanation(results))
        console.print(cpu_table(results))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=4, help="of measuring (default: 4)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="requests per round, times this (default: 1)"
    )
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = time.monotonic()
    try:
        compile_scanner()
        run(args.rounds, args.scale)
    except KeyboardInterrupt:
        console.print("interrupted; all processes have ended")
        return 130
    except FileNotFoundError as exc:
        console.print(
            f"[red]{exc.filename} is missing[/]: `make demo` installs what it needs "
            "(packages redis-server, redis-tools, iproute2)"
        )
        return 1
    except (ProgramError, AssertionError, subprocess.CalledProcessError, redis.RedisError, OSError) as exc:
        console.print(f"failed: {exc}", style="red", markup=False)
        return 1
    console.print(f"done in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
