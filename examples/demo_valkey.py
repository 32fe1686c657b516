"""An unmodified valkey-server by its own RDMA protocol and by TCP, the same client (`make demo-valkey`).

Starts a valkey-server with RDMA on free ports of this machine, on the software device, and checks with
redis-py that both paths lead to the same data. Then it sets and gets values of 64 bytes to 4 MiB on both
paths by turns, and draws how they compare: here, and in build/valkey.svg. Ctrl-C stops everything at any
time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import redis
import redis.asyncio
from demolib import sizes
from demolib.processes import ProgramError
from demolib.valkey import BUILT, start_valkey
from rich.bar import Bar
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from aiordma.integrations.redis import from_url

PICTURE = Path(__file__).parents[1] / "build" / "valkey.svg"
console = Console(highlight=False)


async def prove(rdma: redis.asyncio.Redis, tcp: redis.asyncio.Redis) -> None:
    """Raises AssertionError, redis.RedisError."""
    value = os.urandom(3_000_000)
    await rdma.set("proof", value)
    assert await tcp.get("proof") == value, "what was set by RDMA is not what TCP gets"
    await tcp.set("proof", value[::-1])
    assert await rdma.get("proof") == value[::-1], "what was set by TCP is not what RDMA gets"
    console.print("  [green]ok[/]  3 MB set by RDMA are what TCP gets, and the reverse")
    before = (await tcp.info("stats"))["total_net_input_bytes"]
    await rdma.set("proof", value)
    moved = (await tcp.info("stats"))["total_net_input_bytes"] - before
    assert moved >= len(value), f"the server has received {moved} bytes"
    (connection,) = rdma.connection_pool._available_connections
    path = connection._writer.get_extra_info("aiordma.path")
    counts = connection._writer.get_extra_info("aiordma.stream").statistics()
    assert path == "rdma", f"the client's path is {path}"
    console.print(
        f"  [green]ok[/]  the client's path is [bold]{path}[/]: "
        f"{counts.bytes_sent:,} bytes in {counts.writes} WRITEs"
    )


def table(rows: list[sizes.Row]) -> Table:
    most = max(1.0, *(row.ratio for row in rows))
    made = Table(title="SET and GET by turns, one at a time: requests per second", title_style="bold")
    for number, column in enumerate(("value", "TCP", "RDMA", "RDMA / TCP")):
        made.add_column(column, justify="right" if number < 3 else "left", no_wrap=True)
    made.add_column("", width=36)
    for row in rows:
        colour = "green" if row.ratio >= 1 else "red"
        bar = Bar(most, 0, row.ratio, width=36, color=colour)
        made.add_row(
            sizes.name(row.size), f"{row.tcp:,.0f}", f"{row.rdma:,.0f}", f"[bold]{row.ratio:.2f}x[/]", bar
        )
    return made


async def compare(rdma_port: int, tcp_port: int, rounds: int) -> list[sizes.Row]:
    async with (
        from_url(f"valkey+rdma://127.0.0.1:{rdma_port}") as rdma,
        redis.asyncio.Redis(port=tcp_port) as tcp,
    ):
        await prove(rdma, tcp)
        with Progress(console=console, transient=True) as progress:
            bar = progress.add_task("SET and GET", total=rounds * len(sizes.SIZES))
            return await sizes.measure(rdma, tcp, rounds, lambda: progress.advance(bar))


def run(rounds: int) -> None:
    """Raises what its parts raise."""
    cpus = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="aiordma-demo-") as directory:
        # The server on one CPU and the client on another: moving about costs more than what is compared.
        server = start_valkey(directory, cpu=cpus[0])
        os.sched_setaffinity(0, {cpus[-1]})
        try:
            console.print(
                f"[bold]valkey-server[/] (pid {server.program.process.pid}), unmodified: TCP on port "
                f"{server.tcp_port}, RDMA on port {server.rdma_port}"
            )
            rows = asyncio.run(compare(server.rdma_port, server.tcp_port, rounds))
        finally:
            server.program.stop()
    console.print(table(rows))
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(
        sizes.picture(rows, "valkey-server, redis-py, one request at a time"), encoding="utf-8"
    )
    console.print(
        f"wrote {PICTURE.relative_to(Path.cwd()) if PICTURE.is_relative_to(Path.cwd()) else PICTURE}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6, help="of measuring (default: 6)")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = time.monotonic()
    try:
        run(args.rounds)
    except KeyboardInterrupt:
        console.print("interrupted; all processes have ended")
        return 130
    except (ProgramError, AssertionError, redis.RedisError, OSError) as exc:
        console.print(f"failed: {exc}", style="red", markup=False)
        if not BUILT.exists():
            console.print("there is no valkey-server with RDMA here: `make demo-valkey` builds it")
        return 1
    console.print(f"done in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
