"""`python -m benchmarks.kernel_smc`: a kernel's SMC-R server, and its clients: aiordma, AF_SMC and TCP.

Run it where tests/vm/run puts a cable with an rxe device at each end (``make bench-smc``):

    tests/vm/run --net wire --icount 0 -- .venv/bin/python -m benchmarks.kernel_smc

The server has blocking AF_SMC sockets, in a process of its own, and serves TCP clients with the same socket.
It knows nothing of aiordma. The clients run by turns: one round has each of them once, in an order that
rotates. Client and server share the processors of one emulated machine: compare figures with each other only.

CPU is of the whole machine while the work is done, kernel threads and interrupts included (/proc/stat).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import aiordma
from aiordma.cli.smcr import setup
from aiordma.config import Config

from .smc_socket import allow_v2, modes, smc_socket

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from typing import Any

CLIENT, SERVER = "10.99.1.1", "10.99.1.2"
EID = "AIORDMA-TEST-EID"
SMALL, LARGE = 64, 1 << 20
#: One byte before each kind of work, and what the server does.
ECHO, SINK, SOURCE = b"e", b"k", b"o"
#: Idle, waiting for a disk: the fields of a line of /proc/stat that are no work.
_IDLE = (3, 4)


class Figures(NamedTuple):
    """Of one client in one round."""

    trip_us: float
    trip_cpu_us: float
    send_mb_s: float
    send_cpu_ms: float
    receive_mb_s: float
    receive_cpu_ms: float


# ---- the server, which has blocking sockets


def serve() -> None:
    with smc_socket() as listener:
        listener.bind((SERVER, 0))
        listener.listen(8)
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(ConnectionError):
                while kind := connection.recv(1):
                    _work(connection, kind, int.from_bytes(_exactly(connection, 8), "big"))


def _work(connection: socket.socket, kind: bytes, count: int) -> None:
    if kind == ECHO:
        for _ in range(count):
            connection.sendall(_exactly(connection, SMALL))
    elif kind == SINK:
        left, room = count * LARGE, bytearray(LARGE)
        while left:
            left -= connection.recv_into(room, min(left, LARGE))
        connection.sendall(b"!")
    else:
        data = bytes(LARGE)
        for _ in range(count):
            connection.sendall(data)


def _exactly(connection: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        part = connection.recv(size - len(got))
        if not part:
            raise ConnectionResetError
        got += part
    return got


# ---- the clients: each gives the three works


class Works(NamedTuple):
    trips: Callable[[int], Coroutine[Any, Any, None]]
    sends: Callable[[int], Coroutine[Any, Any, None]]
    receives: Callable[[int], Coroutine[Any, Any, None]]


def _asked(kind: bytes, count: int) -> bytes:
    return kind + count.to_bytes(8, "big")


def on_streams(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Works:
    """asyncio's, whoever made them."""
    small, large = bytes(SMALL), bytes(LARGE)

    async def trips(count: int) -> None:
        writer.write(_asked(ECHO, count))
        for _ in range(count):
            writer.write(small)
            await reader.readexactly(SMALL)

    async def sends(count: int) -> None:
        writer.write(_asked(SINK, count))
        for _ in range(count):
            writer.write(large)
            await writer.drain()
        await reader.readexactly(1)

    async def receives(count: int) -> None:
        writer.write(_asked(SOURCE, count))
        left = count * LARGE
        while left:
            left -= len(await reader.read(left))

    return Works(trips, sends, receives)


def on_stream(stream: aiordma.RdmaStream) -> Works:
    small, large = bytes(SMALL), bytes(LARGE)

    async def trips(count: int) -> None:
        await stream.send(_asked(ECHO, count))
        for _ in range(count):
            await stream.send(small)
            await stream.receive_exactly(SMALL)

    async def sends(count: int) -> None:
        await stream.send(_asked(SINK, count))
        for _ in range(count):
            await stream.send(large)
        await stream.receive_exactly(1)

    async def receives(count: int) -> None:
        await stream.send(_asked(SOURCE, count))
        left = count * LARGE
        while left:
            left -= len(await stream.receive(LARGE))

    return Works(trips, sends, receives)


def on_socket(sock: socket.socket) -> Works:
    """A program without an event loop."""
    small, large = bytes(SMALL), bytes(LARGE)

    async def trips(count: int) -> None:
        sock.sendall(_asked(ECHO, count))
        for _ in range(count):
            sock.sendall(small)
            _exactly(sock, SMALL)

    async def sends(count: int) -> None:
        sock.sendall(_asked(SINK, count))
        for _ in range(count):
            sock.sendall(large)
        _exactly(sock, 1)

    async def receives(count: int) -> None:
        sock.sendall(_asked(SOURCE, count))
        left, room = count * LARGE, bytearray(LARGE)
        while left:
            left -= sock.recv_into(room, min(left, LARGE))

    return Works(trips, sends, receives)


def _bound(kind: str) -> socket.socket:
    sock = smc_socket() if kind == "smc" else socket.socket()
    sock.bind((CLIENT, 0))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


@contextlib.asynccontextmanager
async def connected(client: str, port: int) -> AsyncIterator[Works]:
    kind, surface = client.split(", ")
    if kind == "aiordma":
        config = Config.from_env(device="rxe0", smcr_eids=EID, mode="rdma")
        if surface == "asyncio":
            reader, writer = await aiordma.open_connection(
                SERVER, port, config=config, local_addr=(CLIENT, 0)
            )
            yield on_streams(reader, writer)
            writer.close()
            await writer.wait_closed()
        else:
            async with await aiordma.connect(SERVER, port, config=config, local_host=CLIENT) as stream:
                yield on_stream(stream)
        return
    sock = _bound(kind)
    if surface == "blocking":
        with sock:
            sock.connect((SERVER, port))
            _check(kind, port)
            yield on_socket(sock)
        return
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (SERVER, port))
    _check(kind, port)
    reader, writer = await asyncio.open_connection(sock=sock)
    yield on_streams(reader, writer)
    writer.close()
    await writer.wait_closed()


def _check(kind: str, port: int) -> None:
    if kind == "smc" and "SMC-R" not in modes(port):
        raise RuntimeError(f"the sockets use {modes(port)}: is there an rxe device at both ends?")


CLIENTS = (
    "aiordma, RdmaStream",
    "aiordma, asyncio",
    "smc, asyncio",
    "smc, blocking",
    "tcp, asyncio",
    "tcp, blocking",
)


# ---- what is measured


def _busy_s() -> float:
    """Seconds that all processors have worked."""
    fields = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
    ticks = sum(int(field) for place, field in enumerate(fields) if place not in _IDLE)
    return ticks / os.sysconf("SC_CLK_TCK")


async def _timed(work: Callable[[int], Coroutine[Any, Any, None]], count: int) -> tuple[float, float]:
    """Seconds for each, and seconds of the processors."""
    began, busy = time.perf_counter(), _busy_s()
    await work(count)
    return (time.perf_counter() - began) / count, (_busy_s() - busy) / count


async def measure(client: str, port: int, trips: int, sends: int) -> Figures:
    async with connected(client, port) as works:
        await works.trips(trips // 10 + 1)
        trip, trip_cpu = await _timed(works.trips, trips)
        send, send_cpu = await _timed(works.sends, sends)
        receive, receive_cpu = await _timed(works.receives, sends)
    return Figures(
        trip * 1e6,
        trip_cpu * 1e6,
        LARGE / send / 1e6,
        send_cpu * 1e3,
        LARGE / receive / 1e6,
        receive_cpu * 1e3,
    )


def table(found: dict[str, list[Figures]]) -> str:
    """Medians, with the lowest and the highest of all rounds."""
    heads = "64 B, us", "CPU, us", "1 MiB out, MB/s", "CPU, ms", "1 MiB in, MB/s", "CPU, ms"
    lines = [f"| client | {' | '.join(heads)} |", "| --- |" + " ---: |" * len(heads)]
    for client, rounds in found.items():
        cells = []
        for values in zip(*rounds, strict=True):
            low, middle, high = min(values), statistics.median(values), max(values)
            digits = 0 if middle >= 100 else 1
            cells.append(f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})")
        lines.append(f"| {client} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=10, help="turns of each client [10]")
    parser.add_argument("--trips", type=int, default=400, help="round trips of 64 B in each [400]")
    parser.add_argument("--sends", type=int, default=4, help="sends of 1 MiB in each, and receives [4]")
    parser.add_argument("--clients", nargs="*", default=list(CLIENTS), choices=CLIENTS, help="[all]")
    options = parser.parse_args()
    allow_v2(EID)
    cgroup = Path("/run/aiordma-bench-cgroup2")
    cgroup.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "cgroup2", "none", str(cgroup)], check=True)
    setup.enable(cgroup, None)
    found: dict[str, list[Figures]] = {client: [] for client in options.clients}
    server = subprocess.Popen(
        [sys.executable, "-m", __spec__.name, "serve"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        for turn in range(options.rounds):
            for place in range(len(options.clients)):
                client = options.clients[(turn + place) % len(options.clients)]
                figures = asyncio.run(measure(client, port, options.trips, options.sends))
                found[client].append(figures)
                print(f"{turn + 1:3} {client:20}", *(f"{value:10.1f}" for value in figures), flush=True)
    finally:
        server.kill()
        server.wait()
        setup.disable()
    print(table(found))
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        main()
