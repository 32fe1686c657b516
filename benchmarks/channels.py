"""Message channels between two processes, each on a CPU of its own: ``python -m benchmarks.channels``.

Prints the round trip of 64 B, the rate with 64 in flight, the echo of 1 MiB, and the round trip of 64 B on
one channel while another of the same link is kept busy with messages of 1 MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from aiordma import wake
from aiordma.channels import channel
from aiordma.measure.samples import percentile

if TYPE_CHECKING:
    from aiordma.pipes.contracts import Channel, Message

LOCAL = "127.0.0.1"


class Echo:
    """Echo messages; those that find no room wait, in order."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._queue: collections.deque[Message] = collections.deque()
        channel.on_writable = self._more
        channel.on_message = self._echo

    def _echo(self, message: Message) -> None:
        if self._queue or not self._channel.try_send(b"", message):
            self._queue.append(message)

    def _more(self) -> None:
        while self._queue and self._channel.try_send(b"", self._queue[0]):
            self._queue.popleft()


async def serve() -> None:
    async with await channel.listen(LOCAL) as listener:
        print(listener.port, flush=True)
        echoes = []
        ended = asyncio.Event()
        while not ended.is_set():
            accepted = asyncio.ensure_future(listener.accept())
            end = asyncio.ensure_future(ended.wait())
            await asyncio.wait([accepted, end], return_when=asyncio.FIRST_COMPLETED)
            end.cancel()
            if not accepted.done():
                accepted.cancel()
                break
            connected = accepted.result().channel
            connected.on_closed = lambda error: ended.set()
            echoes.append((connected, Echo(connected)))
        for connected, _ in echoes:
            connected.close()


class Caller:
    """Send messages and wait until as many have come back."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._waiter = wake.current().new_waiter()
        self.received = self.sent = 0
        channel.on_message = self._count
        channel.on_writable = self._waiter.set

    def _count(self, message: Message) -> None:
        self.received += 1
        self._waiter.set()

    async def news(self) -> None:
        """Wait as an operation does: busy-poll briefly if allowed, then sleep."""
        self._waiter.clear()
        if not self._channel.spin():
            await self._waiter.wait()

    async def exchange(self, body: bytes, count: int, in_flight: int) -> None:
        sent = 0
        until = self.received + count
        while self.received < until:
            while sent < count and sent - (self.received - until + count) < in_flight:
                if not self._channel.try_send(b"", body):
                    break
                sent += 1
                self.sent += 1
            before = self.received
            if self.received < until:
                await self.news()
            if self.received == before:
                continue

    async def settle(self) -> None:
        """Wait for the replies to everything sent."""
        while self.received < self.sent:
            await self.news()

    async def round_trips(self, body: bytes, seconds: float) -> list[float]:
        taken = []
        end = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < end:
            await self.exchange(body, 1, 1)
            taken.append((time.perf_counter() - begin) * 1e6)
            if len(taken) % 128 == 0:
                await asyncio.sleep(0)
        return sorted(taken)


async def measure(port: int, seconds: float, mode: str) -> None:
    first = await channel.connect(LOCAL, port, mode=mode)  # type: ignore[arg-type]
    second = await channel.connect(LOCAL, port, mode=mode)  # type: ignore[arg-type]
    caller, bulk = Caller(first.channel), Caller(second.channel)
    print(f"path {first.path}")
    small, large = bytes(64), bytes(1 << 20)
    await caller.exchange(small, 2000, 1)
    trips = await caller.round_trips(small, seconds)
    print(f"64 B round trip: median {percentile(trips, 0.5):.2f} us, p99 {percentile(trips, 0.99):.2f} us")
    for size in (64, 4096):
        count, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            await caller.exchange(bytes(size), 2000, 64)
            count += 2000
        rate = count / (time.perf_counter() - begin)
        print(f"{size} B echoes, 64 in flight: {rate / 1e3:.0f} thousand a second")
    await caller.exchange(large, 20, 1)
    trips = await caller.round_trips(large, seconds)
    print(f"1 MiB echo: median {percentile(trips, 0.5):.1f} us, p99 {percentile(trips, 0.99):.1f} us")
    load = asyncio.ensure_future(keep_busy(bulk, large))
    trips = await caller.round_trips(small, 2 * seconds)
    load.cancel()
    await asyncio.wait([load])
    await bulk.settle()
    moved = bulk.received * 2 / (2 * seconds) / 1024
    print(
        f"64 B beside 1 MiB echoes, 8 in flight ({moved:.1f} GiB/s): median {percentile(trips, 0.5):.1f} us, "
        f"p99 {percentile(trips, 0.99):.1f} us"
    )
    await first.aclose()
    await second.aclose()


async def keep_busy(caller: Caller, body: bytes) -> None:
    while True:
        await caller.exchange(body, 64, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--mode", choices=["auto", "rdma", "tcp"], default="auto")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[-1] if arguments.serve else cpus[0]})
    if arguments.serve:
        asyncio.run(serve())
        return
    os.sched_setaffinity(0, set(cpus))
    command = [sys.executable, "-m", "benchmarks.channels", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        os.sched_setaffinity(0, {cpus[0]})
        assert server.stdout is not None
        asyncio.run(measure(int(server.stdout.readline()), arguments.seconds, arguments.mode))


if __name__ == "__main__":
    main()
