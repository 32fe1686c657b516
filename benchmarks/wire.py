"""The software device's RoCEv2 wire beside plain UDP and TCP (``make bench``; ``python -m benchmarks.wire``).

Over loopback, two processes on separate CPUs run: perftest's ``ib_write_bw`` and ``ib_send_lat`` with all
traffic through sockets (`SOFTDEV_WIRE=only`), one UDP stream in runs of 4 KiB packets (UDP_SEGMENT,
UDP_GRO, as in iperf3), one asyncio TCP stream, and a uvloop echo of 64 bytes over UDP. Then ``ib_write_bw``
runs between two network namespaces. All take turns, several times: on a busy machine only the ratios are
meaningful.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import socket
import struct
import subprocess
import time
from statistics import median
from typing import TYPE_CHECKING, Any, cast

import uvloop

from aiordma.verbs import softlib
from tests.cable import cabled_hosts
from tests.tools import listening

if TYPE_CHECKING:
    from collections.abc import Callable

LOCAL = "127.0.0.1"
UDP_SEGMENT, UDP_GRO = 103, 104  # linux/udp.h
SO_RCVBUFFORCE = 33
PACKET = 4096
RUN = 15 * PACKET
PORT = struct.Struct("H")
CPUS = sorted(os.sched_getaffinity(0))


def in_child(serve: Callable[[int], None]) -> int:
    """Run the other end in a child, on the first CPU. It writes its port to the given descriptor."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.sched_setaffinity(0, {CPUS[0]})
        with contextlib.suppress(BaseException):
            serve(write)
        os._exit(0)
    os.close(write)
    port: int = PORT.unpack(os.read(read, PORT.size))[0]
    os.close(read)
    os.sched_setaffinity(0, {CPUS[-1]})
    return port


# ---- one UDP stream -----------------------------------------------------------------------------------


def udp_stream(seconds: float) -> float:
    """Bytes per second that arrive of one stream in runs of packets; those without room are lost."""
    results, told = os.pipe()

    def serve(tell: int) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
            with contextlib.suppress(PermissionError):
                sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
            sock.bind((LOCAL, 0))
            os.write(tell, PORT.pack(sock.getsockname()[1]))
            buffer = bytearray(65536)
            total, begin = sock.recv_into(buffer), time.perf_counter()
            while (n := sock.recv_into(buffer)) >= PACKET:
                total += n
            os.write(told, struct.pack("d", total / (time.perf_counter() - begin)))

    port = in_child(serve)
    data, how = bytes(RUN), [(socket.IPPROTO_UDP, UDP_SEGMENT, PORT.pack(PACKET))]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((LOCAL, port))
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            sock.sendmsg([data], how)
        time.sleep(0.1)
        for _ in range(16):  # the end marker may find no room either
            sock.send(b"end")
            time.sleep(0.01)
            if os.waitpid(-1, os.WNOHANG)[0]:
                break
        else:
            message = "the receiver of the UDP stream does not end"
            raise RuntimeError(message)
    os.close(told)
    with os.fdopen(results, "rb") as pipe:
        rate: float = struct.unpack("d", pipe.read(8))[0]
    return rate


# ---- one TCP stream -----------------------------------------------------------------------------------


def tcp_stream(seconds: float) -> float:
    """Bytes per second of one asyncio stream, 1 MiB writes."""

    async def sink(tell: int) -> None:
        ended = asyncio.Event()

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.read(1 << 18):
                pass
            writer.write(b"end")
            await writer.drain()
            ended.set()

        async with await asyncio.start_server(take, LOCAL, 0) as server:
            os.write(tell, PORT.pack(server.sockets[0].getsockname()[1]))
            await ended.wait()

    async def pour(port: int) -> float:
        reader, writer = await asyncio.open_connection(LOCAL, port)
        data, total, begin = bytes(1 << 20), 0, time.perf_counter()
        while time.perf_counter() < begin + seconds:
            writer.write(data)
            await writer.drain()
            total += len(data)
        writer.write_eof()
        await reader.read()
        taken = time.perf_counter() - begin
        writer.close()
        return total / taken

    rate = asyncio.run(pour(in_child(lambda tell: asyncio.run(sink(tell)))))
    os.wait()
    return rate


# ---- a UDP echo ---------------------------------------------------------------------------------------


class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.DatagramTransport", transport)  # uvloop's is not a subclass

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if len(data) == 1:
            asyncio.get_running_loop().stop()
        self.transport.sendto(data, addr)


class Caller(Echo):
    """Return each received message, and record the time."""

    def __init__(self, until: float, done: asyncio.Future[None]) -> None:
        self.until, self.done = until, done
        self.at: list[float] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.sendto(bytes(64))

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.at.append(time.perf_counter())
        if self.at[-1] < self.until:
            self.transport.sendto(data)
        elif not self.done.done():
            self.done.set_result(None)


def udp_echo(seconds: float) -> float:
    """Median round trip of 64 bytes between two uvloop programs, in seconds."""

    def serve(tell: int) -> None:
        loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        _, echo = loop.run_until_complete(loop.create_datagram_endpoint(Echo, (LOCAL, 0)))
        os.write(tell, PORT.pack(echo.transport.get_extra_info("sockname")[1]))
        loop.run_forever()

    async def call(port: int) -> float:
        loop = asyncio.get_running_loop()
        caller = Caller(time.perf_counter() + seconds, loop.create_future())
        transport, _ = await loop.create_datagram_endpoint(lambda: caller, remote_addr=(LOCAL, port))
        await caller.done
        transport.sendto(b"e")
        await asyncio.sleep(0.05)
        transport.close()
        return median(b - a for a, b in zip(caller.at, caller.at[1:], strict=False))

    port = in_child(serve)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        trip = runner.run(call(port))
    os.wait()
    return trip


# ---- perftest on the wire -----------------------------------------------------------------------------


def perftest(
    tool: str, *options: str, hosts: tuple[list[str], list[str]] = ([], []), address: str = LOCAL
) -> list[str]:
    """Return the fields of the client's result line. hosts: the command prefix for each end."""
    with socket.socket() as probe:
        probe.bind((LOCAL, 0))
        port = probe.getsockname()[1]
    environ = {**os.environ, "LD_PRELOAD": str(softlib.locate()), "SOFTDEV_WIRE": "only"}
    command = [tool, "-p", str(port), "-d", "soft0", "-F", *options]
    pinned = [*hosts[0], "taskset", "-c", str(CPUS[0]), *command]
    with subprocess.Popen(
        pinned, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            while server.poll() is None and not listening(server.pid, port):
                time.sleep(0.01)
            pinned = [*hosts[1], "taskset", "-c", str(CPUS[-1]), *command, address]
            client = subprocess.run(
                pinned, env=environ, capture_output=True, text=True, check=False, timeout=60
            )
        except BaseException:
            server.kill()
            raise
    found = re.search(r"#bytes.*\n\s*(.*)", client.stdout)
    if client.returncode or not found:
        message = f"{' '.join(command)} has failed: {client.stdout}{client.stderr}"
        raise RuntimeError(message)
    return found[1].split()


def write_bandwidth(seconds: float) -> float:
    """Bytes per second of 64 KiB WRITEs, 128 in flight."""
    count = str(max(1000, int(seconds * 10000)))
    return float(perftest("ib_write_bw", "-m", "4096", "-s", "65536", "-n", count)[3]) * (1 << 20)


def read_bandwidth(seconds: float) -> float:
    count = str(max(1000, int(seconds * 5000)))
    return float(perftest("ib_read_bw", "-m", "4096", "-s", "65536", "-n", count)[3]) * (1 << 20)


def send_round_trip(seconds: float) -> float:
    """Median round trip of 64-byte SENDs, both ends polling, in seconds."""
    return float(perftest("ib_send_lat", "-s", "64", "-n", str(max(1000, int(seconds * 20000))))[4]) * 2e-6


# ---- between two hosts --------------------------------------------------------------------------------


def write_over_cable(seconds: float, gid: str) -> float:
    """Measure between two hosts. Raises RuntimeError without network namespaces (they need root)."""
    options = ("-m", "4096", "-s", "65536", "-x", gid, "-n", str(max(1000, int(seconds * 5000))))
    with cabled_hosts() as (server, client):
        prefixes = server.command(), client.command()
        found = perftest("ib_write_bw", *options, hosts=prefixes, address=server.address)
    return float(found[3]) * (1 << 20)


# ---- everything ----------------------------------------------------------------------------------------

RATES: dict[str, tuple[str, Callable[[float], float]]] = {
    "write": ("WRITE, 64 KiB, MTU 4096", write_bandwidth),
    "read": ("READ, 64 KiB, MTU 4096", read_bandwidth),
    "udp": ("one UDP stream, UDP_SEGMENT and UDP_GRO", udp_stream),
    "tcp": ("one asyncio TCP stream", tcp_stream),
    "write_cable_ipv6": ("WRITE over veth, IPv6", lambda seconds: write_over_cable(seconds, "1")),
    "write_cable_ipv4": ("WRITE over veth, IPv4", lambda seconds: write_over_cable(seconds, "0")),
}
"""Bytes a second."""
TIMES: dict[str, tuple[str, Callable[[float], float]]] = {
    "send": ("SEND of 64 B there and back, both ends polling", send_round_trip),
    "echo": ("UDP echo of 64 B by uvloop", udp_echo),
}
"""Seconds."""


def run(rounds: int, seconds: float, tell: Callable[[str], None]) -> dict[str, Any]:
    """Run all rounds; return JSON-able data. `seconds` per number, roughly."""
    found: dict[str, list[float]] = {name: [] for name in RATES | TIMES}
    missing: dict[str, str] = {}
    for number in range(rounds):
        for name, (title, measure) in (RATES | TIMES).items():
            if name in missing:
                continue
            tell(f"wire, round {number + 1}/{rounds}  {title}")
            try:
                found[name].append(measure(seconds))
            except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
                missing[name] = str(error)
            finally:
                os.sched_setaffinity(0, set(CPUS))
    return {"rounds": rounds, "found": found, "missing": missing}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement, roughly")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    results = run(arguments.rounds, arguments.seconds, lambda _: None)
    middle = {name: median(values) for name, values in results["found"].items() if values}
    for kinds, form in ((RATES, "{:8.2f} GB/s"), (TIMES, "{:8.1f} us")):
        for name, (title, _) in kinds.items():
            if name in middle:
                print(f"{title:48}", form.format(middle[name] * (1e-9 if kinds is RATES else 1e6)))
            else:
                print(f"{title:48} not measured: {results['missing'].get(name)}")
    if not {"write", "udp", "tcp", "echo", "send"} - middle.keys():
        print(
            f"WRITE is {middle['write'] / middle['udp']:.2f} of UDP and"
            f" {middle['write'] / middle['tcp']:.2f} of TCP,"
            f" SEND {middle['echo'] / middle['send']:.1f} times as fast as the echo"
        )
    print(f"medians of {arguments.rounds}; load {os.getloadavg()[0]:.1f} on {len(CPUS)} CPUs")


if __name__ == "__main__":
    main()
