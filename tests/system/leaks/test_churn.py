"""Thousands of connections and failures, and then everything counts as much as before."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import socket
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import sniffio

import aiordma
from aiordma.links import engine as engines
from tests.health import ROUNDS, descriptors, nothing_left, until
from tests.loops import LOOPS
from tests.processes import process
from tests.roles import LOCAL, echo

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from tests.program import Control

pytestmark = pytest.mark.slow

HERE = "tests.system.leaks.test_churn"
ECHO = "tests.roles:echo_server"


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("\n")


class Count:
    """What there is of everything, in this process."""

    def __init__(self, engine: engines.Engine) -> None:
        gc.collect()
        # How many slabs there are depends on how many rings were in use at the same time, here and there.
        everything = descriptors()
        self.descriptors = [name for name in everything if "slab" not in name]
        self.slabs = len(everything) - len(self.descriptors)
        self.mappings = mappings()
        self.objects = Counter(type(found).__qualname__ for found in gc.get_objects())
        self.resident = resident_bytes()
        memory = engine.pool.statistics()
        # A server may hold some rings for clients that come often.
        self.memory = memory.used_bytes - sum(g.pregranted.held_bytes for g in engine.all_groups)
        self.qps = len(engine.all_groups) + len(engine.cache.parked)
        self.tasks = tasks_alive()

    def compare(self, later: Count, times: int) -> None:
        """``later`` is ``times`` connections later. A leak is at least one for each of some kind; caches of
        the interpreter and of the allocator come and go."""
        for name in ("descriptors", "memory", "qps", "tasks"):
            assert getattr(later, name) == getattr(self, name), (name, vars(self), vars(later))
        assert later.slabs - self.slabs < 5, (self.slabs, later.slabs)
        kinds = {kind: n for kind, n in (later.objects - self.objects).items() if n > times / 10}
        if in_trio():
            # Trio keeps the deadlines of up to 1,000 scopes that have ended.
            kinds = {
                kind: n for kind, n in kinds.items() if kind not in {"tuple", "CancelScope", "CancelReason"}
            }
        else:
            # asyncio keeps up to a hundred timers that were cancelled early, each with its context.
            kinds = {
                kind: n for kind, n in kinds.items() if n > 100 or kind not in {"TimerHandle", "Context"}
            }
        assert not kinds, kinds
        assert later.mappings - self.mappings < times / 20, (self.mappings, later.mappings)
        # Rings are resident only when they have been used, and how many of them are in use at a time differs:
        # a client that holds tickets waits for nobody. Allow for some.
        assert later.resident - self.resident < (4 << 20) + 512 * times, (self.resident, later.resident)


def in_trio() -> bool:
    return sniffio.current_async_library() == "trio"


def tasks_alive() -> int:
    if not in_trio():
        return len(asyncio.all_tasks())
    import trio

    def count(task: Any) -> int:
        return 1 + sum(count(child) for nursery in task.child_nurseries for child in nursery.child_tasks)

    return count(trio.lowlevel.current_root_task())


async def one_of_each(port: int, number: int) -> None:
    """A connection that ends in one of the ways connections end."""
    stream = await aiordma.connect(LOCAL, port, mode="rdma")
    way = number % 5
    if way == 0:
        await stream.aclose()
    elif way == 1:
        await stream.send(b"x" * 1000)
        await stream.receive()
        await stream.aclose()
    elif way == 2:
        await stream.send(b"x" * 100_000)
        await anyio.aclose_forcefully(stream)
    elif way == 3:
        await stream.send_eof()
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()
        await stream.aclose()
    else:
        with anyio.move_on_after(0):
            await stream.receive()
        await stream.send(b"x")
        await stream.aclose()


async def settled(engine: engines.Engine) -> None:
    """Wait until the last connection has ended, and what its end has set off."""
    await until(lambda: not any(group.members for group in engine.all_groups), engine.statistics)
    await anyio.wait_all_tasks_blocked()


async def check_churn(
    turn: Callable[[int], Awaitable[None]],
    times: int,
    *,
    at_once: int,
    count: Callable[[engines.Engine], Count] = Count,
) -> None:
    """Many turns, some at a time, after which everything counts as much as before."""

    async def some(n: int) -> None:
        numbers = iter(range(n))

        async def work() -> None:
            for number in numbers:
                await turn(number)

        async with anyio.create_task_group() as tasks:
            for _ in range(at_once):
                tasks.start_soon(work)

    async with nothing_left() as engine:
        await some(times // 4)
        await settled(engine)
        before = count(engine)
        await some(times)
        await settled(engine)
        before.compare(count(engine), times)


async def churn(control: Control, port: int, times: int) -> None:
    await check_churn(lambda number: one_of_each(port, number), times, at_once=8)
    control.say("done")


@pytest.mark.parametrize("loop", LOOPS)
def test_connections(loop: str) -> None:
    with process(ECHO, loop=loop) as server:
        port = server.hear()
        with process(f"{HERE}:churn", loop=loop, port=port, times=600 * ROUNDS) as client:
            assert client.hear() == "done"
        server.say("statistics?")
        server.hear()
        # The client has gone: nothing may be left of it here but the parked QP.
        while True:
            server.say("statistics?")
            theirs = server.hear()
            if not theirs["links"]:
                break
        assert theirs["parked_qps"] == 1
        assert theirs["memory"]["used_bytes"] == theirs["memory"]["registered_bytes"]


async def fail(control: Control, times: int) -> None:
    """Connections that fail in one of the ways connections fail."""
    logging.getLogger("aiordma").setLevel(logging.ERROR)
    garbage = socket.create_server((LOCAL, 0))
    garbage.setblocking(False)
    refused = socket.create_server((LOCAL, 0))
    refused_port = refused.getsockname()[1]
    refused.close()

    async def answer_garbage() -> None:
        while True:
            await anyio.wait_readable(garbage)
            sock, _ = garbage.accept()
            sock.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            sock.close()

    async def one(number: int, listener: aiordma.RdmaListener) -> None:
        way = number % 4
        if way == 0:
            with pytest.raises(OSError, match="refused"):
                await aiordma.connect(LOCAL, refused_port)
        elif way == 1:
            with pytest.raises(aiordma.NegotiationError):
                await aiordma.connect(LOCAL, garbage.getsockname()[1], mode="rdma")
        elif way == 2:
            with socket.create_connection((LOCAL, listener.port)) as sock:
                sock.send(b"\xe2\xd4\xc3\xd9\x01\x00"[: number % 7])  # the beginning of a Proposal
        else:
            with anyio.move_on_after(0):
                await aiordma.connect(LOCAL, listener.port, mode="rdma")

    async with nothing_left() as engine, await aiordma.listen(LOCAL) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer_garbage)
            tasks.start_soon(listener.serve, echo)
            counts = []
            for n in (times // 4, times):
                for number in range(n):
                    await one(number, listener)
                async with await aiordma.connect(LOCAL, listener.port, mode="rdma") as stream:
                    await stream.send(b"x")
                    await stream.receive()

                def undecided() -> int:
                    return listener.statistics().undecided + listener.statistics().negotiating

                await until(lambda: not undecided(), listener.statistics)
                await settled(engine)
                counts.append(Count(engine))
            counts[0].compare(counts[1], times)
            tasks.cancel_scope.cancel()
    garbage.close()
    control.say("done")


@pytest.mark.parametrize("loop", LOOPS)
def test_failures(loop: str) -> None:
    with process(f"{HERE}:fail", loop=loop, times=400 * ROUNDS) as client:
        assert client.hear() == "done"


def run_on(loop: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    backend, options = LOOPS[loop]
    anyio.run(main, backend=backend, backend_options=options)


async def hello() -> None:
    """A connection of this loop's engine with itself; everything is left as it is when the loop ends."""
    async with await aiordma.listen(LOCAL) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        stream = await aiordma.connect(LOCAL, listener.port, mode="rdma")
        await stream.send(b"hello" * 20_000)
        assert await stream.receive()
        if id(stream) % 3:
            await stream.aclose()
        tasks.cancel_scope.cancel()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_loops_one_after_another() -> None:
    """asyncio.run() again and again, with a program that tidies up only sometimes: each engine ends with its
    loop."""
    counts = []
    before = descriptors()  # segments of aiordma.memory outlive event loops
    for turn in range(20 * ROUNDS):
        for loop in LOOPS:
            run_on(loop, hello)
        if turn % 10 == 9:
            gc.collect()
            counts.append((descriptors(), mappings(), len(engines.ENGINES)))
    (first, maps, engines_left), (last, later_maps, still) = counts[0], counts[-1]
    assert first == last
    assert later_maps - maps < 20
    assert engines_left == still == 0
    device = [[name for name in names if "memfd" in name or "infiniband" in name] for names in (before, last)]
    assert device[0] == device[1]


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_descriptors_after_the_last_engine() -> None:
    run_on("asyncio", hello)
    gc.collect()
    before = descriptors()
    run_on("asyncio", hello)
    gc.collect()
    assert descriptors() == before
    assert os.getpid()
