"""An open loop: messages are due at a fixed rate, whether or not earlier ones have been answered.

A closed loop sends the next message when the last one is answered, so a pause of 10 ms counts once. Here all
messages that were due meanwhile are late, and the time of each counts from when it was due.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable


async def offered(
    send: Callable[[bytes], Awaitable[object]],
    receive: Callable[[int], Awaitable[object]],
    size: int,
    per_second: float,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> array[float]:
    """The seconds that each round trip took since it was due.

    The sender's loop is kept awake, so that no timer's granularity counts; the peer's is not. What is not
    sent after twice the time is left out, so that a rate that is too high ends, too. The first one is sent
    however late: a machine that is busy may have paused this process for all of the time.
    """
    message, taken = b"x" * size, array("d")
    begin = clock() + 0.001
    sent, ends = 0, False
    news = asyncio.Event()

    async def send_all() -> None:
        nonlocal sent, ends
        for number in range(int(per_second * seconds)):
            due = begin + number / per_second
            while (now := clock()) < due:  # noqa: ASYNC110 (a timer would be a millisecond late)
                await asyncio.sleep(0)
            if sent and now > begin + 2 * seconds:
                break
            await send(message)
            sent += 1
            news.set()
        ends = True
        news.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(send_all())
        while True:
            if len(taken) == sent:
                if ends:
                    return taken
                news.clear()
                await news.wait()
                continue
            await receive(size)
            taken.append(clock() - (begin + len(taken) / per_second))
