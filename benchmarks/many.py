"""`python -m benchmarks.many`: what thousands of streams between two processes cost.

    idle    opens streams, and measures memory, a lone active stream among them, and what closing gives back
    slow    one fast stream beside streams whose readers hardly read
    churn   connects and disconnects, one after the other, and what of that stays
    tail    the slowest of many round trips of 64 bytes, beside TCP

Each part prints a line as soon as it is measured. The server is a process of its own; the first processor is
the client's, the second the server's. Settings are the defaults, or those of the environment.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import gc
import os
import resource
import signal
import sys
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import uvloop

import aiordma

SIZE = 64
FAST = 1 << 20
say = functools.partial(print, flush=True)
#: What the kernel lets a process have open, besides the sockets of the streams.
SPARE_FILES = 1000


def memory(pid: int) -> int:
    """Proportional set size in bytes: what is shared with other processes counts in part (proc(5))."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("no Pss in smaps_rollup")


def files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def maps(pid: int) -> int:
    with open(f"/proc/{pid}/maps") as file:
        return sum(1 for _ in file)


class State:
    """What both processes have of memory, files and maps."""

    def __init__(self, server: int) -> None:
        pids = os.getpid(), server
        self.memory = [memory(pid) for pid in pids]
        self.files = [files(pid) for pid in pids]
        self.maps = [maps(pid) for pid in pids]

    def __str__(self) -> str:
        mib = " / ".join(f"{each / 2**20:.1f}" for each in self.memory)
        return f"{mib} MiB, {self.files[0]} / {self.files[1]} files, {self.maps[0]} / {self.maps[1]} maps"


# ---- the server


async def echo(stream: aiordma.RdmaStream) -> None:
    """Send back what comes. A stream that begins with ``S`` has a slow reader: 1 KiB every 50 ms. One that
    begins with ``D`` gets one byte for each MiB."""
    with contextlib.suppress(Exception):
        async with stream:
            data = await stream.receive()
            if data[:1] == b"S":
                while True:
                    await stream.receive(1024)
                    await asyncio.sleep(0.05)
            if data[:1] == b"D":
                got = len(data)
                while got < FAST:
                    got += len(await stream.receive(FAST - got))
                    if got == FAST:
                        await stream.send(b".")
                        got = 0
            while True:
                await stream.send(data)
                data = await stream.receive()


async def serve(ports: int) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(Exception):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async with await aiordma.listen("127.0.0.1", 0, max_pending=65536) as listener:
        tcp = await asyncio.start_server(plain, "127.0.0.1", 0)
        os.write(ports, f"{listener.port} {tcp.sockets[0].getsockname()[1]}\n".encode())
        await listener.serve(echo)


# ---- the parts


async def round_trips(ask: Callable[[], Awaitable[Any]], seconds: float) -> array[float]:
    """Seconds of each. Not as objects: millions of them would be taken for memory of the streams."""
    found = array("d")
    until = time.perf_counter() + seconds
    while (before := time.perf_counter()) < until:
        await ask()
        found.append(time.perf_counter() - before)
    return found


def at(values: array[float], *parts: float) -> list[float]:
    """These quantiles, in microseconds."""
    ordered = sorted(values)
    return [ordered[min(len(ordered) - 1, int(len(ordered) * part))] * 1e6 for part in parts]


async def ping(stream: aiordma.RdmaStream) -> None:
    await stream.send(b"p" * SIZE)
    got = 0
    while got < SIZE:
        got += len(await stream.receive())


@contextlib.asynccontextmanager
async def many(port: int, count: int) -> AsyncIterator[list[aiordma.RdmaStream]]:
    streams: list[aiordma.RdmaStream] = []
    try:
        for _ in range(count):
            streams.append(await aiordma.connect("127.0.0.1", port))
            if len(streams) % 2000 == 0:
                say(f"  ... {len(streams)} streams", file=sys.stderr)
        yield streams
    finally:
        for stream in streams:
            await stream.aclose()


async def idle(port: int, server: int, options: argparse.Namespace) -> None:
    async with await aiordma.connect("127.0.0.1", port) as lone:
        await round_trips(lambda: ping(lone), 0.5)
        alone = at(await round_trips(lambda: ping(lone), options.seconds / 20), 0.5, 0.99)
        before = State(server)
        say(f"idle: before            {before}")
        began = time.perf_counter()
        async with many(port, options.streams) as streams:
            took = time.perf_counter() - began
            for stream in streams:
                await ping(stream)
            rdma = sum(stream.path == "rdma" for stream in streams)
            say(f"idle: opened            {len(streams)} in {took:.1f} s, {rdma} of them on RDMA")
            after = State(server)
            each = [(b - a) / len(streams) / 1024 for a, b in zip(before.memory, after.memory, strict=True)]
            say(f"idle: PSS of a stream   {each[0]:.1f} KiB client, {each[1]:.1f} KiB server")
            among = at(await round_trips(lambda: ping(lone), options.seconds / 20), 0.5, 0.99)
            say(
                f"idle: 64 B round trip   {alone[0]:.2f} us alone, {among[0]:.2f} us among them "
                f"(medians; p99 {alone[1]:.2f} and {among[1]:.2f})"
            )
            began = time.perf_counter()
        took = time.perf_counter() - began
        del streams, stream
        await asyncio.sleep(10 - took)
        gc.collect()
        say(f"idle: closed, after 10 s {State(server)}")


async def fast(stream: aiordma.RdmaStream, seconds: float) -> float:
    """GB/s of 1 MiB sends, each answered by one byte."""
    data, count = b"D" + bytes(FAST - 1), 0
    began = time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        await stream.send(data)
        await stream.receive()
        count += 1
    return count * FAST / took / 1e9


async def slow(port: int, _server: int, options: argparse.Namespace) -> None:
    async with await aiordma.connect("127.0.0.1", port) as stream:
        await fast(stream, 0.5)
        rates = [await fast(stream, options.seconds / 20)]
        async with many(port, options.slow) as streams, contextlib.AsyncExitStack() as stack:

            async def fill(stream: aiordma.RdmaStream) -> None:
                with contextlib.suppress(Exception):
                    while True:
                        await stream.send(b"S" * 65536)

            tasks = [asyncio.create_task(fill(each)) for each in streams]

            async def stop() -> None:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

            stack.push_async_callback(stop)
            await asyncio.sleep(1)
            rates.append(await fast(stream, options.seconds / 20))
        say(
            f"slow: 1 MiB sends       {rates[0]:.2f} GB/s alone, {rates[1]:.2f} GB/s beside "
            f"{options.slow} slow readers ({rates[1] / rates[0]:.0%})"
        )


async def churn(port: int, server: int, options: argparse.Namespace) -> None:
    async def some(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            async with await aiordma.connect("127.0.0.1", port) as stream:
                await ping(stream)
        return count / (time.perf_counter() - began)

    async with await aiordma.connect("127.0.0.1", port):
        await some(max(1000, options.connects // 20))
        say(f"churn: warm             {State(server)}")
        for part in range(4):
            rate = await some(options.connects // 4)
            done = (part + 1) * (options.connects // 4)
            say(f"churn: {done:<7} connects  {rate:.0f} a second, {State(server)}")


async def tail(port: int, _server: int, options: argparse.Namespace) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", options.tcp_port)

    async def tcp_ping() -> None:
        writer.write(b"p" * SIZE)
        await reader.readexactly(SIZE)

    found = {"aiordma": array("d"), "TCP": array("d")}
    async with await aiordma.connect("127.0.0.1", port) as stream:
        # By turns: what the machine does meanwhile concerns both alike.
        for _ in range(12):
            found["aiordma"] += await round_trips(lambda: ping(stream), options.seconds / 12)
            found["TCP"] += await round_trips(tcp_ping, options.seconds / 12)
    writer.close()
    for name, values in found.items():
        *quantiles, slowest = at(values, *PERCENTILES.values(), 1.0)
        shown = ", ".join(f"{label} {us:.1f}" for label, us in zip(PERCENTILES, quantiles, strict=True))
        say(f"tail: {name:7} {len(values):>9} round trips, us: {shown}, max {slowest:.0f}")


PERCENTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}
PARTS = {"idle": idle, "slow": slow, "churn": churn, "tail": tail}


# ---- both processes


def allow_files(count: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE_FILES
    if hard != resource.RLIM_INFINITY and hard < wanted:
        sys.exit(f"{count} streams need {wanted} open files, the limit is {hard}: raise it (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def pin(index: int) -> None:
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[index % len(processors)]})


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.many",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part", nargs="*", metavar="PART", choices=[[], *PARTS], help="default: all")
    parser.add_argument("--streams", type=int, default=10_000, help="of idle (%(default)s)")
    parser.add_argument("--slow", type=int, default=1_000, help="readers of slow (%(default)s)")
    parser.add_argument("--connects", type=int, default=100_000, help="of churn (%(default)s)")
    parser.add_argument("--seconds", type=float, default=120, help="of tail, each side (%(default)s)")
    options = parser.parse_args()
    allow_files(max(options.streams, options.slow))
    ports, theirs = os.pipe()
    server = os.fork()
    if server == 0:
        pin(1)
        with contextlib.suppress(KeyboardInterrupt):
            uvloop.run(serve(theirs))
        os._exit(0)
    pin(0)
    try:
        port, options.tcp_port = map(int, os.read(ports, 64).split())
        for name in options.part or PARTS:
            uvloop.run(PARTS[name](port, server, options))
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)


if __name__ == "__main__":
    main()
