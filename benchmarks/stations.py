"""`python -m benchmarks.stations`: the cost of each station on the path of a byte, in nanoseconds.

Both ends of a stream live in one process and one event loop, pinned to one CPU, so each step can be run and
timed by itself. Reports the median of thousands of runs, minus the cost of the clock. Between processes on
separate CPUs two costs come on top: cache misses on the other CPU's data and, if it sleeps, the wake-up
(last line).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import time
from collections import defaultdict

import aiordma
from aiordma.config import Config
from aiordma.links import engine as engines
from aiordma.measure.samples import percentile

SIZES = (64, 4096, 65536)


def clock_cost() -> int:
    spent = sorted(-(time.perf_counter_ns() - time.perf_counter_ns()) for _ in range(10_000))
    return spent[len(spent) // 2]


async def measure(size: int, rounds: int) -> dict[str, int]:
    """Median nanoseconds of each station for messages of `size` bytes."""
    clock, data = time.perf_counter_ns, os.urandom(size)
    found: dict[str, list[int]] = defaultdict(list)
    async with await aiordma.listen("127.0.0.1", config=Config(device="soft", busy_poll_us=0)) as listener:
        one = await aiordma.connect("127.0.0.1", listener.port, mode="rdma")
        other = await listener.accept()
        engine = await engines.current()
        into, out = one._pipe, other._pipe
        room = bytearray(size)
        copied = memoryview(room)
        for number in range(rounds + rounds // 5):
            t0 = clock()
            if number % 2:
                await one.send(data)
                name = "1-4 await stream.send(): all of it"
            else:
                into.try_send(data)
                name = "2-4 copy, post, wire: the pipe alone"
            t1 = clock()
            into.spin_writable()  # the cursor, if deferred to the end of the tick
            engine.poller.drain()
            t2 = clock()
            assert out.readable == size
            t3 = clock()
            if number % 2:
                got = await other.receive(size)
                last = "8 await stream.receive()"
            else:
                got = out.try_receive(size) or b""
                last = "8 copy out: the pipe alone"
            t4 = clock()
            copied[:] = got
            t5 = clock()
            # A reply, as in a round trip: it carries acknowledgements and credit.
            out.try_send(b"a")
            out.spin_writable()
            engine.poller.drain()
            assert into.try_receive(1) == b"a"
            into.spin_writable()
            engine.poller.drain()
            if number >= rounds // 5:
                found[name].append(t1 - t0)
                found["6 poll and dispatch"].append(t2 - t1)
                found[last].append(t4 - t3)
                found["(one copy of the bytes, for comparison)"].append(t5 - t4)
            if not number % 16:
                await asyncio.sleep(0)
        await one.aclose()
        await other.aclose()
    cost = clock_cost()
    return {name: max(0, int(percentile(sorted(times), 0.5)) - cost) for name, times in sorted(found.items())}


async def wake_up(rounds: int) -> dict[str, int]:
    """Stations 5 and 7 without sleeping: from the event to the task that waited for it."""
    clock = time.perf_counter_ns
    times: list[int] = []
    async with await aiordma.listen("127.0.0.1", config=Config(device="soft", busy_poll_us=0)) as listener:
        one = await aiordma.connect("127.0.0.1", listener.port, mode="rdma")
        other = await listener.accept()

        async def wait() -> None:
            await other.receive()
            times.append(clock())

        for _ in range(rounds):
            task = asyncio.ensure_future(wait())
            await asyncio.sleep(0.0001)  # the task waits, and the queue is armed
            started = clock()
            one.send_nowait(b"x")
            await task
            times[-1] -= started
        await one.aclose()
        await other.aclose()
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    loop, plain = asyncio.get_running_loop(), []
    with near, far:

        async def wait_plain() -> None:
            await loop.sock_recv(far, 1)
            plain.append(clock())

        for _ in range(rounds):
            task = asyncio.ensure_future(wait_plain())
            await asyncio.sleep(0.0001)
            started = clock()
            near.send(b"x")
            await task
            plain[-1] -= started
    return {
        "5, 7 send, event, a waiting task resumes": int(percentile(sorted(times), 0.5)),
        "(the same on a Unix socket)": int(percentile(sorted(plain), 0.5)),
    }


async def main(rounds: int) -> None:
    rows: dict[str, list[str]] = defaultdict(list)
    for size in SIZES:
        for name, ns in (await measure(size, rounds)).items():
            rows[name].append(str(ns))
    print("| station | " + " | ".join(f"{size} B" for size in SIZES) + " |")
    print("| --- |" + " ---: |" * len(SIZES))
    for name, columns in rows.items():
        print(f"| {name} | {' | '.join(columns)} |")
    for name, ns in (await wake_up(rounds // 10)).items():
        print(f"| {name} | {ns} | | |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stations", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5000, help="messages of each size (%(default)s)")
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    asyncio.run(main(parser.parse_args().rounds))
