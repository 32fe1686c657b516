"""The loops that measure: round trips, operations, floods. What a number costs besides what it measures is
two readings of the clock.

``aiordma ping``, ``aiordma perf`` and the benchmarks use the same ones.
"""

from __future__ import annotations

import asyncio
import sys
from array import array
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .diagnostics import ByteStream


async def round_trips(
    stream: ByteStream, message: bytes, taken: array[float], until: float, most: int = sys.maxsize
) -> None:
    """Send a message and wait until as much has come back, again and again, but once at least.

    :param taken: where the seconds of each round trip go.
    :param until: ``time.perf_counter()`` at the end.
    :param most: so many at most.
    :raises anyio.EndOfStream: or BrokenResourceError, OSError
    """
    size, send, receive, clock, add = len(message), stream.send, stream.receive, perf_counter, taken.append
    before = clock()
    for _ in range(most):
        await send(message)
        missing = size - len(await receive(size))
        while missing > 0:
            missing -= len(await receive(missing))
        now = clock()
        add(now - before)
        if now >= until:
            return
        before = now


async def repeat(
    operation: Callable[[], Awaitable[object]], taken: array[float], until: float, most: int = sys.maxsize
) -> None:
    """The same for any operation."""
    clock, add = perf_counter, taken.append
    before = clock()
    for _ in range(most):
        await operation()
        now = clock()
        add(now - before)
        if now >= until:
            return
        before = now


async def pipelined(
    stream: ByteStream, message: bytes, taken: array[float], until: float, in_flight: int
) -> None:
    """Round trips of which several are under way: one task sends, and this one receives. On asyncio.

    :raises anyio.EndOfStream: or BrokenResourceError, OSError
    """
    size, receive, clock, add = len(message), stream.receive, perf_counter, taken.append
    begun: deque[float] = deque()
    room = asyncio.Semaphore(in_flight)
    is_last = False

    async def send() -> None:
        nonlocal is_last
        while not is_last:
            await room.acquire()
            # Set before the last message goes, so that the receiver knows.
            is_last = clock() >= until
            begun.append(clock())
            await stream.send(message)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(send())
        while True:
            missing = size
            while missing > 0:
                missing -= len(await receive(missing))
            add(clock() - begun.popleft())
            if is_last and not begun:
                return
            room.release()


async def flood(send: Callable[[bytes], Awaitable[object]], message: bytes, until: float) -> int:
    """Send a message again and again. :return: how often. :raises anyio.BrokenResourceError: or OSError"""
    clock, count = perf_counter, 0
    while clock() < until:
        await send(message)
        count += 1
    return count
