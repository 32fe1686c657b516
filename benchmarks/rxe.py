"""`python -m benchmarks.rxe`: asyncio streams over TCP, over the kernel's SMC-R and over aiordma, on rxe.

Run it where tests/vm/run puts a cable with an rxe device at each end:

    tests/vm/run --net wire -- .venv/bin/python -m benchmarks.rxe

The same coroutine with the same StreamReader and StreamWriter does the work each time, server and client in
separate processes; the round trip is also measured on :class:`aiordma.RdmaStream`. Everything is emulated,
even the processors: compare the figures with each other only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import multiprocessing
import socket
import time
from typing import TYPE_CHECKING

import aiordma
from aiordma.config import Config
from aiordma.measure.samples import percentile

from .smc_socket import allow_v2, modes, smc_socket

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

CLIENT, SERVER = "10.99.1.1", "10.99.1.2"
CLIENT_DEVICE, SERVER_DEVICE = "rxe0", "rxe1"
NATIVE = "aiordma, RdmaStream"
PATHS = ("tcp", "smc", "aiordma", "aiordma, events only", NATIVE)
SMALL, LARGE = 64, 1 << 20


def config(device: str, path: str) -> Config:
    return Config(device=device, mode="rdma", busy_poll_us=0 if "events" in path else None)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rounds: int, sends: int) -> None:
    """Echo small messages; then count large ones, and acknowledge the last byte."""
    for _ in range(rounds):
        writer.write(await reader.readexactly(SMALL))
        await writer.drain()
    left = sends * LARGE
    while left:
        data = await reader.read(left)
        if not data:
            raise EOFError(f"{left} bytes are missing")
        left -= len(data)
    writer.write(b"!")
    await writer.drain()
    writer.close()


async def drive(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rounds: int, sends: int
) -> tuple[list[float], float]:
    """Microseconds of each round trip, and seconds of all the large sends."""
    small, large = bytes(SMALL), bytes(LARGE)
    trips = []
    for _ in range(rounds):
        began = time.perf_counter()
        writer.write(small)
        await writer.drain()
        await reader.readexactly(SMALL)
        trips.append((time.perf_counter() - began) * 1e6)
    began = time.perf_counter()
    for _ in range(sends):
        writer.write(large)
        await writer.drain()
    await reader.readexactly(1)
    seconds = time.perf_counter() - began
    writer.close()
    return trips, seconds


async def answer_natively(stream: aiordma.RdmaStream, rounds: int, sends: int) -> None:
    """As :func:`answer`, without StreamReader and StreamWriter."""
    async with stream:
        left = rounds * SMALL
        while left:
            data = await stream.receive()
            left -= len(data)
            await stream.send(data)
        left = sends * LARGE
        while left:
            left -= len(await stream.receive(LARGE))
        await stream.send(b"!")


async def drive_natively(stream: aiordma.RdmaStream, rounds: int, sends: int) -> tuple[list[float], float]:
    small, large = bytes(SMALL), bytes(LARGE)
    trips = []
    for _ in range(rounds):
        began = time.perf_counter()
        await stream.send(small)
        left = SMALL
        while left:
            left -= len(await stream.receive())
        trips.append((time.perf_counter() - began) * 1e6)
    began = time.perf_counter()
    for _ in range(sends):
        await stream.send(large)
    await stream.receive()
    return trips, time.perf_counter() - began


async def serve(path: str, rounds: int, sends: int, say: Callable[[int], None], ended: asyncio.Event) -> None:
    if path == NATIVE:
        async with await aiordma.listen(SERVER, 0, config=config(SERVER_DEVICE, path)) as listener:
            handle = functools.partial(answer_natively, rounds=rounds, sends=sends)
            serving = asyncio.create_task(listener.serve(handle))
            say(listener.port)
            await ended.wait()
            serving.cancel()
        return
    handler = functools.partial(answer, rounds=rounds, sends=sends)
    server: asyncio.AbstractServer
    if path.startswith("aiordma"):
        server = await aiordma.start_server(handler, SERVER, 0, config=config(SERVER_DEVICE, path))
    else:
        sock = smc_socket() if path == "smc" else socket.socket()
        sock.bind((SERVER, 0))
        server = await asyncio.start_server(handler, sock=sock)
    say(server.sockets[0].getsockname()[1])  # type: ignore[attr-defined]
    await ended.wait()
    server.close()


async def measure(path: str, port: int, rounds: int, sends: int) -> tuple[list[float], float]:
    if path == NATIVE:
        async with await aiordma.connect(SERVER, port, config=config(CLIENT_DEVICE, path)) as stream:
            return await drive_natively(stream, rounds, sends)
    if path.startswith("aiordma"):
        reader, writer = await aiordma.open_connection(SERVER, port, config=config(CLIENT_DEVICE, path))
    else:
        sock = smc_socket() if path == "smc" else socket.socket()
        sock.setblocking(False)
        sock.bind((CLIENT, 0))
        await asyncio.get_running_loop().sock_connect(sock, (SERVER, port))
        reader, writer = await asyncio.open_connection(sock=sock)
        if path == "smc" and modes(port) != {"SMC-R"}:
            raise RuntimeError(
                f"the kernel's SMC sockets use {modes(port)}: is there an rxe device at both ends?"
            )
    return await drive(reader, writer, rounds, sends)


def server_process(path: str, rounds: int, sends: int, line: Connection) -> None:
    async def main() -> None:
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(line.fileno(), ended.set)
        await serve(path, rounds, sends, line.send, ended)

    asyncio.run(main())


def run(path: str, rounds: int, sends: int) -> dict[str, float]:
    """Figures of one path: microseconds of the 64 B round trip, MB/s of the 1 MiB sends."""
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=server_process, args=(path, rounds, sends, theirs)
    )
    server.start()
    theirs.close()  # keep only the server's copy, so that its death closes the socket
    try:
        try:
            port = ours.recv()
        except EOFError:
            raise SystemExit(
                f"{path}: the server ended, its error stands above; tests/vm/run wants --net wire"
            ) from None
        trips, seconds = asyncio.run(measure(path, port, rounds, sends))
    finally:
        with contextlib.suppress(OSError):  # it may have exited
            ours.send("end")
        server.join(20)
        server.kill()
    trips.sort()
    return {
        "p50_us": round(percentile(trips, 0.5)),
        "p99_us": round(percentile(trips, 0.99)),
        "mb_per_s": round(sends * LARGE / seconds / 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=500, help="round trips of 64 B [500]")
    parser.add_argument("--sends", type=int, default=30, help="sends of 1 MiB [30]")
    parser.add_argument("--paths", nargs="*", default=PATHS, choices=PATHS, help="[all]")
    options = parser.parse_args()
    if "smc" in options.paths:
        allow_v2()
    found = {}
    for path in options.paths:
        found[path] = run(path, options.rounds, options.sends)
        print(f"{path:22}", *(f"{name} {value:>9,}" for name, value in found[path].items()), flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
