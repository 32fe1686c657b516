"""`python -m benchmarks.crowd`: what a thousand peers cost a server, a link and queue pairs for each.

A peer is an event loop with a device of its own; some processes have many of them, since a thousand processes
would need the memory of a thousand interpreters. First they connect, and one's round trip is measured alone
and among all; then all client processes are killed at once, and others connect in their place: the storm.
The server is a process of its own. Settings are the defaults, or those of the environment.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import os
import resource
import subprocess
import sys
import time
from statistics import median

import uvloop

import aiordma

from .many import State, files, memory

say = functools.partial(print, flush=True)
MESSAGE = b"x" * 64
#: After a kill, the server must have given back the files of the dead within this.
PATIENCE_S = 120.0


# ---- the server


async def echo(stream: aiordma.RdmaStream) -> None:
    with contextlib.suppress(Exception):
        async with stream:
            async for data in stream:
                await stream.send(data)


async def serve() -> None:
    async with await aiordma.listen("127.0.0.1", 0, max_pending=65536) as listener:
        say(listener.port)
        await listener.serve(echo)


# ---- peers


class Peer:
    """One event loop, and a stream that it keeps open."""

    def __init__(self, port: int) -> None:
        self.loop = uvloop.new_event_loop()
        self.stream = self.loop.run_until_complete(self._connect(port))
        self.round_trips(1)

    async def _connect(self, port: int) -> aiordma.RdmaStream:
        return await aiordma.connect("127.0.0.1", port, mode="rdma")

    async def _ask(self, count: int) -> list[float]:
        found = []
        for _ in range(count):
            begin = time.perf_counter()
            await self.stream.send(MESSAGE)
            await self.stream.receive()
            found.append(time.perf_counter() - begin)
        return found

    def round_trips(self, count: int) -> list[float]:
        """Seconds of each."""
        return self.loop.run_until_complete(self._ask(count))


def clients(port: int, count: int, trips: int) -> None:
    """Connect them one after the other, say when all have had an answer, and stay until killed."""
    begin = time.perf_counter()
    peers = [Peer(port) for _ in range(count)]
    say(f"{time.perf_counter() - begin:.3f}")
    sys.stdin.readline()
    say(f"{median(peers[-1].round_trips(trips)) * 1e6:.2f}")
    sys.stdin.readline()
    os._exit(0)


# ---- the parts


def start(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.crowd", *map(str, words)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    found = process.stdout.readline().strip()
    if not found:
        raise RuntimeError(f"a process ended with {process.wait()}")
    return found


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def end(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.communicate()


def storm(port: int, count: int, processes: int) -> tuple[list[subprocess.Popen[str]], float]:
    """Start the clients; return them once each peer has had an answer, and the seconds that took."""
    begin = time.perf_counter()
    share, more = divmod(count, processes)
    sizes = [share + (number < more) for number in range(processes)]
    started = [start("clients", "--port", port, "--peers", size) for size in sizes if size]
    for process in started:
        line(process)
    return started, time.perf_counter() - begin


def measure(count: int, processes: int) -> None:
    server = start("serve")
    running: list[subprocess.Popen[str]] = []
    try:
        port = int(line(server))
        running, _ = storm(port, 1, 1)
        before, memory_before, files_before = State(server.pid), memory(server.pid), files(server.pid)
        go_on(running[0])
        say(f"one peer: 64 B there and back {line(running[0])} us; client / server: {before}")
        more, took = storm(port, count - 1, processes)
        running += more
        say(f"{count} peers: connected in {took:.1f} s, {took / count * 1e3:.1f} ms each")
        grown = (memory(server.pid) - memory_before) / (count - 1) / 1024
        opened = files(server.pid) - files_before
        theirs = sum(memory(process.pid) for process in more) / (count - 1) / 1024
        each = opened / (count - 1)
        say(f"a peer costs the server {grown:.0f} KiB and {each:.1f} files, itself {theirs:.0f} KiB")
        go_on(more[-1])
        say(f"64 B there and back among them: {line(more[-1])} us")
        end(running)
        running = []
        gone(server.pid, files_before + opened // 10)
        running, took = storm(port, count, processes)
        mib = memory(server.pid) / 2**20
        say(f"the storm: {took:.1f} s until {count} new peers have had an answer; server: {mib:.0f} MiB")
    finally:
        end([*running, server])


def gone(server: int, most: int) -> None:
    """Wait until the server has closed what it had open for the dead. Some files stay, for the next ones."""
    begin = time.perf_counter()
    while (left := files(server)) > most and time.perf_counter() - begin < PATIENCE_S:
        time.sleep(0.02)
    say(f"all killed: after {time.perf_counter() - begin:.1f} s the server has {left} files")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", nargs="?", choices=("measure", "serve", "clients"), default="measure")
    parser.add_argument("--peers", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=8, help="of clients [8]")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.role == "serve":
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())
    elif options.role == "clients":
        clients(options.port, options.peers, 2000)
    else:
        measure(options.peers, options.processes)


if __name__ == "__main__":
    main()
