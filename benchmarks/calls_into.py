"""Large values of calls, into memory that the receiver names or not: ``python -m benchmarks.calls_into``.

Two processes, each on a CPU of its own. By turns, in the same run, for 1 and 16 MiB: a result as ``bytes``,
as a read-only view, copied from that view into the caller's own memory, and received there (``into=``), also
into a region of ``aiordma.memory``; and an argument as ``bytes``, as a view copied into the method's memory,
and received there. Prints medians of all turns, and the CPU time that both processes took for each call.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiordma import memory, rpc
from aiordma.config import Config

LOCAL = "127.0.0.1"
MIB = 1 << 20
SIZES = (MIB, 16 * MIB)
MOST = max(SIZES)
CONFIG = Config(max_message_bytes=MOST + MIB)


def cpu_seconds() -> float:
    """CPU time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def service() -> rpc.Service:
    """What the other process serves."""
    made = rpc.Service("b")
    source = memoryview(bytearray(os.urandom(MIB) * (MOST // MIB)))
    table = memoryview(bytearray(b"\1" * MOST))

    @made.method
    def get(size: int) -> memoryview:
        return source[:size]

    @made.method
    def put_bytes(data: bytes) -> int:
        return len(data)

    @made.method
    def put_copied(data: memoryview) -> int:
        table[: len(data)] = data
        return len(data)

    @made.method(into=lambda incoming: table)
    def put_into(data: memoryview) -> int:
        return len(data)

    @made.method
    def cpu() -> float:
        return cpu_seconds()

    return made


class Way:
    """One way to make the call, measured in turns with the others."""

    def __init__(self, name: str, size: int, call: Callable[[], Awaitable[Any]]) -> None:
        self.name, self.size, self.call = name, size, call
        self.taken: list[float] = []
        self.cpu: list[float] = []

    def __str__(self) -> str:
        taken, cpu = statistics.median(self.taken), statistics.median(self.cpu)
        return (
            f"{self.size // MIB:3} MiB  {self.name:30} {taken * 1e3:8.3f} ms "
            f"{self.size / taken / 1e9:6.2f} GB/s  "
            f"CPU of both {cpu * 1e3:8.3f} ms"
        )


def ways(client: rpc.Client, size: int, region: memory.Region) -> list[Way]:
    """All of them, for one size."""
    ours = memoryview(bytearray(b"\1" * size))
    piece = memoryview(bytearray(os.urandom(MIB) * (size // MIB)))
    call = client.call

    async def copied() -> None:
        ours[:] = await call("b.get", size, returns=memoryview)

    return [
        Way("result as bytes", size, lambda: call("b.get", size, returns=bytes)),
        Way("result as a view", size, lambda: call("b.get", size, returns=memoryview)),
        Way("result as a view, copied", size, copied),
        Way("result into=bytearray", size, lambda: call("b.get", size, into=ours)),
        Way("result into=region", size, lambda: call("b.get", size, into=region[:size])),
        Way("argument as bytes", size, lambda: call("b.put_bytes", piece)),
        Way("argument as a view, copied", size, lambda: call("b.put_copied", piece)),
        Way("argument, into= of the method", size, lambda: call("b.put_into", piece)),
    ]


async def turn(way: Way, client: rpc.Client, times: int) -> None:
    """Some calls."""
    await way.call()
    used = await client.call("b.cpu", returns=float) + cpu_seconds()
    begun = time.perf_counter()
    for _ in range(times):
        await way.call()
    way.taken.append((time.perf_counter() - begun) / times)
    way.cpu.append((await client.call("b.cpu", returns=float) + cpu_seconds() - used) / times)


async def measure(port: int, turns: int, mode: Any) -> None:
    """Everything, by turns."""
    async with (
        rpc.connect(LOCAL, port, config=CONFIG, mode=mode) as client,
        await memory.alloc(MOST) as region,
    ):
        region[:].view[:] = bytes(MOST)
        all_ways = [way for size in SIZES for way in ways(client, size, region)]
        print(f"path {client.path}, load {os.getloadavg()[0]:.1f}, medians of {turns} turns")
        for _ in range(turns):
            for way in all_ways:
                await turn(way, client, max(4, 64 * MIB // way.size))
        for way in all_ways:
            print(way)


async def serve() -> None:
    """The other process."""
    async with rpc.serve(service(), LOCAL, config=CONFIG) as server:
        print(server.port, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Run both processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--mode", choices=("rdma", "tcp"), default="rdma")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    if arguments.serve:
        os.sched_setaffinity(0, {cpus[-1]})
        asyncio.run(serve())
        return
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.calls_into", "--serve"], stdout=subprocess.PIPE, text=True
    ) as server:
        os.sched_setaffinity(0, {cpus[0]})
        assert server.stdout is not None
        try:
            asyncio.run(measure(int(server.stdout.readline()), arguments.turns, arguments.mode))
        finally:
            server.kill()


if __name__ == "__main__":
    main()
