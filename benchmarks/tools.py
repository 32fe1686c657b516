"""What the tools themselves cost: ``python -m benchmarks.tools``.

What `aiordma ping` adds to each round trip; then `aiordma stat` over 1,000 streams of one process: how long
it takes, and for how long it keeps the loop of that process from its work. On a busy machine these are the
machine's numbers: CPU times are shown beside them, and with ``--realtime`` (root) both processes come before
all others.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Awaitable, Callable

import aiordma
from aiordma.measure.diagnostics import GREETING, ByteStream, DiagnosticsServer, begin
from aiordma.measure.loops import round_trips

LOCAL = "127.0.0.1"
PRIORITY = 5
MESSAGE = bytes(64)


class Pauses:
    """How long the loop is away, seen by a timer of half a millisecond."""

    def __init__(self) -> None:
        self._longest = 0.0
        self._watcher: asyncio.Future[None] | None = None

    async def _watch(self) -> None:
        before = time.perf_counter()
        while True:
            await asyncio.sleep(0.0005)
            now = time.perf_counter()
            self._longest = max(self._longest, now - before)
            before = now

    def tell(self) -> None:
        """The longest one since the last time. The first time, the watching begins."""
        if self._watcher is None:
            self._watcher = asyncio.ensure_future(self._watch())
        print(self._longest, flush=True)
        self._longest = 0.0


async def serve() -> None:
    """The process that is looked at."""
    pauses, server = Pauses(), DiagnosticsServer()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, pauses.tell)
    async with await aiordma.listen(LOCAL) as listener:
        print(listener.port, flush=True)
        await listener.serve(server.answer)


def realtime() -> None:
    """This process and its children before all others. :raises PermissionError: it is not root's."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))


def stat(pid: int) -> tuple[float, float]:
    """:return: seconds by the clock, and of CPU time."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "aiordma", "stat", "--pid", str(pid)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    took, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


async def look(server: subprocess.Popen[str], port: int, streams: int, rounds: int) -> None:
    """`aiordma stat` again and again."""
    held = [await aiordma.connect(LOCAL, port) for _ in range(streams)]
    assert server.stdout is not None
    times, cpu, pauses, quiet = [], [], [], []
    for _ in range(rounds):
        await asyncio.sleep(0.2)
        server.send_signal(signal.SIGUSR1)
        await asyncio.to_thread(server.stdout.readline)
        await asyncio.sleep(0.2)
        server.send_signal(signal.SIGUSR1)
        quiet.append(float(await asyncio.to_thread(server.stdout.readline)))
        took, used = await asyncio.to_thread(stat, server.pid)
        server.send_signal(signal.SIGUSR1)
        pauses.append(float(await asyncio.to_thread(server.stdout.readline)))
        times.append(took)
        cpu.append(used)
    for stream in held:
        await stream.aclose()
    print(f"aiordma stat over {streams} streams, {rounds} times, load {os.getloadavg()[0]:.1f}:")
    print(f"  took {spread(times)}, of that {spread(cpu)} of CPU time (goal: 300)")
    print(f"  longest pause of the loop {spread(pauses)} (goal: 5), without it {spread(quiet)}")


def spread(seconds: list[float]) -> str:
    """The median, and the longest."""
    return f"{statistics.median(seconds) * 1e3:.1f} ms (at most {max(seconds) * 1e3:.1f})"


class Nothing:
    """A stream without a transport."""

    async def send(self, item: bytes, /) -> None:
        """Go nowhere."""

    async def receive(self, max_bytes: int = 0, /) -> bytes:
        return MESSAGE

    async def send_eof(self) -> None:
        """Never."""

    async def aclose(self) -> None:
        """Nothing to do."""


async def bare(stream: ByteStream, count: int) -> None:
    """Round trips without clock."""
    send, receive = stream.send, stream.receive
    for _ in range(count):
        await send(MESSAGE)
        missing = len(MESSAGE) - len(await receive(len(MESSAGE)))
        while missing > 0:
            missing -= len(await receive(missing))


async def timed(stream: ByteStream, count: int) -> None:
    """As `aiordma ping` does them."""
    await round_trips(stream, MESSAGE, array("d"), time.perf_counter() + 3600, count)


async def by_turns(stream: ByteStream, count: int, clock: Callable[[], int]) -> tuple[float, float]:
    """:return: best microseconds of a round trip, without and with its time being taken."""
    best: dict[Callable[..., Awaitable[None]], float] = {}
    for _ in range(40):
        for run in (bare, timed):
            begun = clock()
            await run(stream, count)
            best[run] = min(best.get(run, 1e9), (clock() - begun) / count / 1e3)
    return best[bare], best[timed]


async def ping(port: int) -> None:
    """What ping adds."""
    without, with_it = await by_turns(Nothing(), 2000, time.thread_time_ns)
    async with await aiordma.connect(LOCAL, port) as stream:
        await begin(stream, GREETING, len(MESSAGE))
        real, measured = await by_turns(stream, 500, time.perf_counter_ns)
    added = with_it - without
    print(f"aiordma ping adds {added:.3f} us to a round trip of 64 B, by {stream.path} {real:.2f} us")
    print(f"  that is {added / real:.1%} (goal: 10 %); with it {measured:.2f} us, best of 40 turns each")


async def measure(server: subprocess.Popen[str], streams: int, rounds: int) -> None:
    assert server.stdout is not None
    port = int(server.stdout.readline())
    await ping(port)
    await look(server, port, streams, rounds)


def main() -> None:
    """Run both processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--realtime", action="store_true", help="before all other processes (root)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if arguments.serve:
        asyncio.run(serve())
        return
    if arguments.realtime:
        realtime()
    command = [sys.executable, "-m", "benchmarks.tools", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            asyncio.run(measure(server, arguments.streams, arguments.rounds))
        finally:
            server.kill()


if __name__ == "__main__":
    main()
