"""Servers and clients that know nothing of aiordma, for `aiordma run` and without it.

    python -m benchmarks.apps.programs serve aiohttp|uvicorn|websockets|grpclib|sanic|asyncua|connects
    python -m benchmarks.apps.programs drive KIND PORT --connections 16 --size 64 --seconds 1

A server prints its port when it accepts connections. A client prints one line of JSON: requests, seconds, CPU
time in microseconds for each, and the path of its connections as far as it can see it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import uvloop

from ..processes import read_process
from .programs_bulk import drive_asyncua, serve_asyncua, serve_sanic
from .programs_connects import drive_connects, serve_connects
from .programs_http import drive_http, serve_aiohttp, serve_uvicorn
from .programs_messages import drive_grpclib, drive_websockets, serve_grpclib, serve_websockets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SERVERS: dict[str, Callable[[Callable[[int], None]], Awaitable[None]]] = {
    "aiohttp": serve_aiohttp,
    "uvicorn": serve_uvicorn,
    "websockets": serve_websockets,
    "grpclib": serve_grpclib,
    "sanic": serve_sanic,
    "sanic-post": serve_sanic,
    "asyncua": serve_asyncua,
    "connects": serve_connects,
}
#: Each makes connections and returns functions that do one request, the path, and how to close them.
DRIVERS: dict[str, Callable[[int, int, int], Awaitable[tuple[list[Any], str, Callable[[], None]]]]] = {
    "aiohttp": drive_http,
    "uvicorn": drive_http,
    "websockets": drive_websockets,
    "grpclib": drive_grpclib,
    "sanic": drive_http,
    "sanic-post": partial(drive_http, body=True),
    "asyncua": drive_asyncua,
    "connects": drive_connects,
}


def ready(port: int) -> None:
    print(f"ready {port}", flush=True)


async def repeat(request: Callable[[], Awaitable[None]], until: float) -> int:
    done = 0
    while time.perf_counter() < until:
        await request()
        done += 1
    return done


async def drive(options: argparse.Namespace) -> None:
    requests, path, close = await DRIVERS[options.kind](options.port, options.connections, options.size)
    await asyncio.gather(*(repeat(request, time.perf_counter() + 0.2) for request in requests))
    print("begin", flush=True)
    sys.stdin.readline()
    before, began = read_process(os.getpid()), time.perf_counter()
    done = sum(await asyncio.gather(*(repeat(request, began + options.seconds) for request in requests)))
    took = time.perf_counter() - began
    used = read_process(os.getpid()) - before
    result = {"per_second": done / took, "cpu_us": used.cpu_us / done, "requests": done, "path": path}
    print(json.dumps(result), flush=True)
    close()
    await asyncio.sleep(0)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    roles = made.add_subparsers(dest="role", required=True)
    roles.add_parser("serve").add_argument("kind", choices=SERVERS)
    client = roles.add_parser("drive")
    client.add_argument("kind", choices=DRIVERS)
    client.add_argument("port", type=int)
    client.add_argument("--connections", type=int, default=1)
    client.add_argument("--size", type=int, default=64)
    client.add_argument("--seconds", type=float, default=1.0)
    return made


def main() -> None:
    options = parser().parse_args()
    if options.role == "serve":
        uvloop.run(_serve(options.kind))
    else:
        uvloop.run(drive(options))


async def _serve(kind: str) -> None:
    await SERVERS[kind](ready)


if __name__ == "__main__":
    main()
