"""A Python client of Redis without the front: its requests go to the back by RDMA streams, or by TCP.

    python -m benchmarks.apps.direct HOST:PORT rdma|tcp --streams 1 --in-flight 64 --requests 20000

Prints one line of JSON: requests per second, and CPU time in microseconds for each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from typing import TYPE_CHECKING

import uvloop
from proxy.net import Address
from proxy.pool import Dialer

from ..processes import read_process

if TYPE_CHECKING:
    from proxy.lane import Lane

WARM_UP = 200


async def ask(lane: Lane, count: int) -> None:
    for _ in range(count):
        answer = await lane.ask(b"GET", b"key")
        assert answer == b"$3\r\nxxx\r\n", answer


async def load(lanes: list[Lane], in_flight: int, requests: int) -> int:
    """`in_flight` requests at any time, spread over the lanes; how many were made."""
    each = max(1, requests // in_flight)
    async with asyncio.TaskGroup() as tasks:
        for number in range(in_flight):
            tasks.create_task(ask(lanes[number % len(lanes)], each))
    return each * in_flight


async def main(options: argparse.Namespace) -> None:
    dialer = Dialer(Address.parse(options.back), options.path, 5.0)
    lanes = [await dialer.open(2) for _ in range(options.streams)]
    assert dialer.path.partition(" ")[0] == options.path, dialer.path
    await lanes[0].ask(b"SET", b"key", b"xxx")
    await load(lanes, options.in_flight, WARM_UP)
    before, began = read_process(os.getpid()), time.perf_counter()
    done = await load(lanes, options.in_flight, options.requests)
    took = time.perf_counter() - began
    used = read_process(os.getpid()) - before
    print(json.dumps({"per_second": done / took, "cpu_us": used.cpu_us / done, "requests": done}))
    for lane in lanes:
        lane.close()
    await asyncio.sleep(0)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("back", metavar="HOST:PORT")
    made.add_argument("path", choices=("rdma", "tcp"))
    made.add_argument("--streams", type=int, default=1)
    made.add_argument("--in-flight", type=int, default=1)
    made.add_argument("--requests", type=int, default=20_000)
    return made


if __name__ == "__main__":
    uvloop.run(main(parser().parse_args()))
