"""One-sided memory between two processes, each on a CPU of its own: ``python -m benchmarks.one_sided``.

By turns, in the same run: READ, WRITE and fetch-and-add of 64 B that are awaited, beside the round trip of 64
B on a stream between the same two processes; and WRITE and READ of 1 MiB, beside a memcpy of 1 MiB by this
process into a shared mapping that the other one has filled. Prints medians of all turns, the 99th percentile,
and the CPU time that both processes took, in percent of the turn; then what both take while an open region is
idle. Needs a quiet machine; it prints the load.
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import os
import resource
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Awaitable, Callable

import aiordma
from aiordma import memory
from aiordma.measure.loops import repeat
from aiordma.measure.samples import percentile

LOCAL = "127.0.0.1"
BIG = 1 << 20
IDLE = 5
Operation = Callable[[], Awaitable[object]]


def cpu_seconds() -> float:
    """CPU time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def echo(stream: aiordma.RdmaStream) -> None:
    """Send back what comes."""
    async with stream:
        async for data in stream:
            await stream.send(data)


async def tell(peer: memory.Peer) -> None:
    """Answer notes with the CPU time that was used so far."""
    async for _ in peer.notifications():
        await peer.notify(str(cpu_seconds()).encode())


def mapped(shared: str) -> mmap.mmap:
    """The file that both processes map."""
    with open(shared, "r+b") as file:
        return mmap.mmap(file.fileno(), BIG)


async def serve() -> None:
    """The owner."""
    async with (
        memory.serve(LOCAL, on_peer=tell) as server,
        await memory.alloc(BIG) as region,
        await aiordma.listen(LOCAL) as listener,
    ):
        region[:].view[:] = bytes(BIG)
        print(server.port, listener.port, region.descriptor(memory.Rights(7)).hex(), flush=True)
        await listener.serve(echo)


class Measurement:
    """One operation, measured in turns with the others."""

    def __init__(self, name: str, operation: Operation) -> None:
        self.name, self.operation = name, operation
        self.taken: list[float] = []
        self.own: list[float] = []
        self.owner: list[float] = []

    async def turn(self, seconds: float, peer: memory.Peer) -> None:
        """Repeat it for a while."""
        for _ in range(20):
            await self.operation()
        before = await owners_cpu(peer)
        taken, own = array("d"), cpu_seconds()
        await repeat(self.operation, taken, time.perf_counter() + seconds)
        passed = sum(taken)
        self.own.append((cpu_seconds() - own) / passed * 100)
        self.taken += [each * 1e6 for each in taken]
        self.owner.append((await owners_cpu(peer) - before) / passed * 100)

    def __str__(self) -> str:
        taken, own, owner = sorted(self.taken), sorted(self.own), sorted(self.owner)
        return (
            f"{self.name:34} median {percentile(taken, 0.5):7.1f} us  p99 {percentile(taken, 0.99):7.1f} us  "
            f"CPU {percentile(own, 0.5):3.0f} %, of the owner {percentile(owner, 0.5):3.0f} %"
        )


async def owners_cpu(peer: memory.Peer) -> float:
    """CPU seconds of the owner's process."""
    await peer.notify(b"?")
    return float(await anext(peer.notifications()))


async def measure(line: str, mapping: memoryview, turns: int, seconds: float) -> None:
    """Everything, by turns."""
    port, stream_port, descriptor = line.split()
    async with (
        await memory.connect(LOCAL, int(port)) as peer,
        await aiordma.connect(LOCAL, int(stream_port)) as stream,
        await memory.alloc(BIG) as ours,
    ):
        remote = await peer.open(bytes.fromhex(descriptor))
        small, into, big = bytes(64), bytearray(64), bytes(BIG)
        word, piece = remote[:64], ours[:64]
        slot = remote[64:72]

        async def round_trip() -> None:
            await stream.send(small)
            await stream.receive()

        async def copy() -> None:
            mapping[:] = big

        measured = [
            Measurement("64 B round trip of a stream", round_trip),
            Measurement("64 B WRITE", lambda: word.write(small)),
            Measurement("64 B READ into a buffer", lambda: word.read(into)),
            Measurement("64 B READ into a region", lambda: word.read(piece)),
            Measurement("fetch-and-add", lambda: slot.fetch_and_add(1)),
            Measurement("1 MiB memcpy into shared memory", copy),
            Measurement("1 MiB WRITE", lambda: remote.write(big)),
            Measurement("1 MiB READ into a region", lambda: remote.read(ours)),
        ]
        print(f"paths {peer.path} and {stream.path}, load {os.getloadavg()[0]:.1f}")
        for _ in range(turns):
            for each in measured:
                await each.turn(seconds, peer)
        for each in measured:
            print(each)
        own, owner = cpu_seconds(), await owners_cpu(peer)
        await asyncio.sleep(IDLE)
        own, owner = cpu_seconds() - own, await owners_cpu(peer) - owner
        print(f"idle for {IDLE} s: CPU {own * 1e3:.1f} ms, of the owner {owner * 1e3:.1f} ms")


def main() -> None:
    """Run both processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--serve", metavar="FILE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    if arguments.serve:
        os.sched_setaffinity(0, {cpus[-1]})
        mapped(arguments.serve)[:] = b"\1" * BIG  # its pages are this process's, as those of the region
        asyncio.run(serve())
        return
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as shared:  # memory that both map
        shared.truncate(BIG)
        command = [sys.executable, "-m", "benchmarks.one_sided", "--serve", shared.name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            os.sched_setaffinity(0, {cpus[0]})
            assert server.stdout is not None
            try:
                line = server.stdout.readline()
                mapping = memoryview(mapped(shared.name))
                asyncio.run(measure(line, mapping, arguments.turns, arguments.seconds))
            finally:
                server.kill()


if __name__ == "__main__":
    main()
