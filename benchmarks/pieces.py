"""Large pieces into memory that the receiver names: ``python -m benchmarks.pieces``.

Two processes, each on a CPU of its own. By turns, in the same run, for 1, 16 and 64 MiB: a piece is sent on
a stream and received by ``receive()`` into one ``bytes``, by ``receive_into()`` in a loop, and by
``receive_exactly_into()``, into memory that was used before: in huge pages and in small ones. And it is
written into a region of the receiver's (``aiordma.memory``), which needs one copy, beside a memcpy into a
mapping that both share. Prints medians of all turns, and the CPU time that both processes took for each
piece. Needs a quiet machine; it prints the load.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import mmap
import os
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable

import aiordma
from aiordma import memory

LOCAL = "127.0.0.1"
MIB = 1 << 20
SIZES = (MIB, 16 * MIB, 64 * MIB)
MOST = max(SIZES)
_ORDER = struct.Struct("<BQ")
_WAYS = (
    "receive() and join",
    "receive_into() in a loop",
    "receive_exactly_into()",
    "the same, small pages",
)


def cpu_seconds() -> float:
    """CPU time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def take(stream: aiordma.RdmaStream, way: int, view: memoryview) -> None:
    """Receive one piece."""
    if way >= 2:
        await stream.receive_exactly_into(view)
        return
    at, parts = 0, []
    while at < len(view):
        if way:
            at += await stream.receive_into(view[at:])
        else:
            parts.append(await stream.receive(len(view) - at))
            at += len(parts[-1])
    b"".join(parts)


async def handle(stream: aiordma.RdmaStream) -> None:
    """Take pieces as ordered; answer each with the CPU time used so far."""
    huge, small = kept(mmap.MADV_HUGEPAGE), kept(mmap.MADV_NOHUGEPAGE)
    async with stream:
        while True:
            way, size = _ORDER.unpack(await stream.receive_exactly(_ORDER.size))
            if size:
                await take(stream, way, (small if way == 3 else huge)[:size])
            await stream.send(struct.pack("<d", cpu_seconds()))


def kept(advice: int) -> memoryview:
    """Memory that was used before."""
    memory = mmap.mmap(-1, MOST, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(advice)
    memory[:] = b"\1" * MOST
    return memoryview(memory)


def mapped(shared: str) -> mmap.mmap:
    """The file that both processes map."""
    with open(shared, "r+b") as file:
        return mmap.mmap(file.fileno(), MOST)


async def serve(register: bytearray) -> None:
    """The receiver."""
    async with (
        memory.serve(LOCAL) as server,
        await memory.alloc(MOST) as shared,
        memory.register(register) as own,
        await aiordma.listen(LOCAL) as listener,
    ):
        shared[:].view[:] = bytes(MOST)
        places = (shared.descriptor().hex(), own.descriptor().hex())
        print(server.port, listener.port, *places, flush=True)
        await listener.serve(handle)


class Way:
    """One way to move a piece, measured in turns with the others."""

    def __init__(self, name: str, size: int, move: Callable[[], Awaitable[None]]) -> None:
        self.name, self.size, self.move = name, size, move
        self.taken: list[float] = []
        self.cpu: list[float] = []

    def __str__(self) -> str:
        taken, cpu = statistics.median(self.taken), statistics.median(self.cpu)
        rate = self.size / taken / 1e9
        return (
            f"{self.size // MIB:3} MiB  {self.name:34} {taken * 1e3:8.3f} ms {rate:6.2f} GB/s  "
            f"CPU of both {cpu * 1e3:8.3f} ms"
        )


async def ask(stream: aiordma.RdmaStream) -> float:
    """CPU seconds of the receiver."""
    await stream.send(_ORDER.pack(0, 0))
    answer: float = struct.unpack("<d", await stream.receive_exactly(8))[0]
    return answer


async def turn(way: Way, stream: aiordma.RdmaStream, times: int) -> None:
    """Move some pieces."""
    await way.move()
    used = await ask(stream) + cpu_seconds()
    begun = time.perf_counter()
    for _ in range(times):
        await way.move()
    way.taken.append((time.perf_counter() - begun) / times)
    way.cpu.append((await ask(stream) + cpu_seconds() - used) / times)


async def measure(line: str, mapping: memoryview, turns: int) -> None:
    """Everything, by turns."""
    port, stream_port, *descriptors = line.split()
    async with (
        await memory.connect(LOCAL, int(port)) as peer,
        await aiordma.connect(LOCAL, int(stream_port)) as stream,
    ):
        shared, own = [await peer.open(bytes.fromhex(each)) for each in descriptors]
        source = memoryview(bytearray(os.urandom(MIB) * (MOST // MIB)))
        ways: list[Way] = []
        for size in SIZES:
            piece = source[:size]

            async def send(way: int, piece: memoryview = piece) -> None:
                await stream.send(_ORDER.pack(way, len(piece)))
                await stream.send(piece)
                await stream.receive_exactly(8)

            async def copy(piece: memoryview = piece) -> None:
                mapping[: len(piece)] = piece

            for number, name in enumerate(_WAYS):
                ways.append(Way(name, size, functools.partial(send, number)))
            part, part_own = shared[:size], own[:size]
            ways.append(Way("WRITE into a region of alloc()", size, functools.partial(part.write, piece)))
            ways.append(Way("WRITE into registered memory", size, functools.partial(part_own.write, piece)))
            ways.append(Way("memcpy into shared memory", size, copy))
        print(f"paths {peer.path} and {stream.path}, load {os.getloadavg()[0]:.1f}")
        for _ in range(turns):
            for way in ways:
                await turn(way, stream, max(2, 32 * MIB // way.size))
        for way in ways:
            print(way)


def main() -> None:
    """Run both processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--serve", metavar="FILE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    if arguments.serve:
        os.sched_setaffinity(0, {cpus[-1]})
        mapped(arguments.serve)[:] = b"\1" * MOST
        asyncio.run(serve(bytearray(b"\1" * MOST)))
        return
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as shared:  # memory that both map
        shared.truncate(MOST)
        command = [sys.executable, "-m", "benchmarks.pieces", "--serve", shared.name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            os.sched_setaffinity(0, {cpus[0]})
            assert server.stdout is not None
            try:
                line = server.stdout.readline()
                mapping = memoryview(mapped(shared.name))
                asyncio.run(measure(line, mapping, arguments.turns))
            finally:
                server.kill()


if __name__ == "__main__":
    main()
