"""`python -m benchmarks.lossy`: bulk asyncio streams over TCP and over the RoCEv2 wire, on a lossy cable.

Run it in a machine with netem, which tests/vm/run provides:

    tests/vm/run --net none -- .venv/bin/python -m benchmarks.lossy

Two network namespaces with a cable (veth, frames of 4500 bytes) that delays each packet by 1 ms and drops one
in a hundred, in both directions. The kernel must not merge packets on it (gso_max_segs 1): netem would drop
whole runs. Client and server are separate processes; the same coroutine with the same StreamReader and
StreamWriter does the work each time, and the receiver hashes the data.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import multiprocessing
import random
import struct
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import aiordma
from aiordma.config import Config
from tests.cable import ADDRESSES
from tests.vm.wire import ends

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection

CLIENT, SERVER = "near", "far"
HARM = ["delay", "1ms", "loss", "1%"]
PATHS = ("tcp", "aiordma")
CHUNK = 1 << 20
NAMESPACES = Path("/run/netns")


def config() -> Config:
    return Config(mode="rdma", soft_wire="auto")


async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Receive as many bytes as the first eight specify; answer with their hash."""
    left = struct.unpack("!Q", await reader.readexactly(8))[0]
    digest = hashlib.sha256()
    while left:
        data = await reader.read(min(left, CHUNK))
        if not data:
            raise EOFError(f"{left} bytes are missing")
        digest.update(data)
        left -= len(data)
    writer.write(digest.digest())
    await writer.drain()
    writer.close()


async def give(path: str, port: int, mib: int) -> tuple[float, bool]:
    """Return bytes per second, and whether the data arrived intact."""
    address = ADDRESSES["ipv4"][1]
    chunks = [random.Random(n).randbytes(CHUNK) for n in range(mib)]
    digest = hashlib.sha256(b"".join(chunks)).digest()
    if path == "tcp":
        reader, writer = await asyncio.open_connection(address, port)
    else:
        reader, writer = await aiordma.open_connection(address, port, config=config())
    began = time.perf_counter()
    writer.write(struct.pack("!Q", mib * CHUNK))
    for chunk in chunks:
        writer.write(chunk)
        await writer.drain()
    said = await reader.readexactly(len(digest))
    seconds = time.perf_counter() - began
    writer.close()
    return mib * CHUNK / seconds, said == digest


def server_process(path: str, line: Connection) -> None:
    async def main() -> None:
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(line.fileno(), ended.set)
        address = ADDRESSES["ipv4"][1]
        if path == "tcp":
            server: asyncio.AbstractServer = await asyncio.start_server(take, address, 0)
        else:
            server = await aiordma.start_server(take, address, 0, config=config())
        line.send(server.sockets[0].getsockname()[1])  # type: ignore[attr-defined]
        await ended.wait()
        server.close()

    ends.enter(NAMESPACES / SERVER)
    asyncio.run(main())


def client_process(path: str, mib: int, line: Connection) -> None:
    ends.enter(NAMESPACES / CLIENT)
    line.send(asyncio.run(give(path, line.recv(), mib)))


def run(path: str, mib: int) -> tuple[float, bool]:
    """Do one transfer over the cable; result as of :func:`give`."""
    context = multiprocessing.get_context("spawn")
    lines, processes = [], []
    for target, arguments in (server_process, (path,)), (client_process, (path, mib)):
        ours, theirs = multiprocessing.Pipe()
        process = context.Process(target=target, args=(*arguments, theirs))
        process.start()
        theirs.close()  # so that a failure of the other end is noticed
        lines.append(ours)
        processes.append(process)
    server, client = lines
    try:
        client.send(server.recv())
        result: tuple[float, bool] = client.recv()
        server.send("end")
        for process in processes:
            process.join(20)
    finally:
        for process in processes:
            process.kill()
            process.join()
    return result


@contextlib.contextmanager
def cable(harm: Sequence[str]) -> Iterator[None]:
    with ends.cable(CLIENT, SERVER):
        for name in (CLIENT, SERVER):
            ends.run("ip", "-n", name, "link", "set", "cable", "gso_max_segs", "1")
        with ends.netem(*harm, near=CLIENT, far=SERVER):
            yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--mib", type=int, default=64, help="in each transfer [64]")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each [3]")
    parser.add_argument("--harm", nargs="*", default=HARM, help=f"arguments for netem [{' '.join(HARM)}]")
    options = parser.parse_args()
    found: dict[str, list[float]] = {path: [] for path in PATHS}
    with cable(options.harm):
        for _ in range(options.rounds):
            for path, rates in found.items():
                rate, whole = run(path, options.mib)
                if not whole:
                    raise RuntimeError(f"{path}: what arrived is not what was sent")
                rates.append(rate)
    print(
        f"{options.mib} MiB, {' '.join(options.harm)}, medians of {options.rounds} turns; each hash was right"
    )
    for path, rates in found.items():
        turns = ", ".join(f"{rate / 1e6:.2f}" for rate in rates)
        print(f"{path:12} {median(rates) / 1e6:8.2f} MB/s  ({turns})", flush=True)


if __name__ == "__main__":
    main()
