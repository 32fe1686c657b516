"""Time that jumps: long timeouts in short tests, on asyncio's virtual loop and on trio's clock."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
import trio.testing

import aiordma
from aiordma.testing import VirtualLoop
from tests.world import DEVICE

Main = Callable[[], Awaitable[None]]

pytestmark = pytest.mark.skipif(DEVICE != "soft", reason="a device of the kernel has a time of its own")


def on_virtual_loop(main: Main, grace: float = 0.01) -> None:
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(grace)) as runner:
        runner.run(main())  # type: ignore[arg-type]


def on_trio(main: Main, grace: float = 0.001) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=grace))


both = pytest.mark.parametrize("run", [on_virtual_loop, on_trio], ids=["asyncio", "trio"])
modes = pytest.mark.parametrize("mode", ["rdma", "tcp"])


async def pair(
    body: Callable[[aiordma.RdmaStream, aiordma.RdmaStream], Awaitable[None]], mode: Any, **settings: Any
) -> None:
    """Both ends of a stream in this loop."""
    config = aiordma.Config(device=DEVICE, **settings)
    accepted: list[aiordma.RdmaStream] = []
    over = anyio.Event()
    there = anyio.Event()

    async def serve(stream: aiordma.RdmaStream) -> None:
        accepted.append(stream)
        there.set()
        await over.wait()

    async with (
        await aiordma.listen("127.0.0.1", config=config) as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, serve)
        async with await aiordma.connect("127.0.0.1", listener.port, mode=mode, config=config) as stream:
            await there.wait()
            await body(stream, accepted[0])
            over.set()
        tasks.cancel_scope.cancel()


@both
@modes
def test_a_timeout_of_ten_minutes(run: Callable[..., None], mode: str) -> None:

    async def body(stream: aiordma.RdmaStream, _: aiordma.RdmaStream) -> None:
        began = anyio.current_time()
        # It is no deadline that ends what hangs: `fail_after` has more time in a slower place.
        with anyio.CancelScope(deadline=began + 600) as timeout:
            await stream.receive()
        assert timeout.cancelled_caught
        assert anyio.current_time() - began == pytest.approx(600, abs=5)

    run(lambda: pair(body, mode))


@both
@modes
def test_bytes_arrive_while_time_stands_still(run: Callable[..., None], mode: str) -> None:
    async def body(stream: aiordma.RdmaStream, other: aiordma.RdmaStream) -> None:
        sent = bytes(range(256)) * 4096

        async def send() -> None:
            for start in range(0, len(sent), 65536):
                await stream.send(sent[start : start + 65536])
            await stream.send_eof()

        got = bytearray()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            async for part in other:
                got += part
        assert got == sent

    run(lambda: pair(body, mode))


def keepalives() -> int:
    statistics = aiordma.statistics()
    assert statistics is not None
    return sum(link["keepalives"] for link in statistics["links"])


@both
def test_ten_minutes_of_silence_keep_the_link(run: Callable[..., None]) -> None:
    """Keepalive probes are answered at the moment at which they are sent: the device needs no grace."""

    async def body(stream: aiordma.RdmaStream, other: aiordma.RdmaStream) -> None:
        before = keepalives()
        await anyio.sleep(600)
        assert keepalives() > before
        await stream.send(b"still there")
        assert await other.receive() == b"still there"
        assert stream.path == other.path == "rdma"

    run(lambda: pair(body, "rdma", keepalive_ms=10_000))


#: Seconds after which a float has no nanoseconds any more: more than 194 days.
A_YEAR = 3.2e7


@both
def test_a_short_time_after_a_year(run: Callable[..., None]) -> None:
    async def main() -> None:
        began = anyio.current_time()
        await anyio.sleep(A_YEAR)
        then = anyio.current_time()
        assert then - began == pytest.approx(A_YEAR)
        for seconds in (1e-3, 0.1, 1e-9, 0):
            await anyio.sleep(seconds)
        assert anyio.current_time() - then == pytest.approx(0.101, abs=1e-6)

    run(main)


@both
def test_the_device_after_a_year(run: Callable[..., None]) -> None:
    """It counts nanoseconds, in which a time that it has named may be none of the loop's."""

    async def body(stream: aiordma.RdmaStream, other: aiordma.RdmaStream) -> None:
        before = keepalives()
        await anyio.sleep(600)
        assert keepalives() > before
        await stream.send(b"still there")
        assert await other.receive() == b"still there"
        assert stream.path == other.path == "rdma"

    async def main() -> None:
        await anyio.sleep(A_YEAR)
        await pair(body, "rdma", keepalive_ms=10_000)

    run(main)


def test_threads_hold_the_time() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        entered: list[float] = []

        def work() -> float:
            while not entered:
                time.sleep(0.001)
            time.sleep(0.05)
            return loop.time()

        future = loop.run_in_executor(None, work)
        timer = loop.call_later(600, entered.append, 0.0)
        entered.append(loop.time())
        assert await future == 0.0
        timer.cancel()

    on_virtual_loop(main)


def test_timers_run_in_their_order_and_at_their_times() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        seen: list[tuple[str, float]] = []

        def note(name: str) -> None:
            seen.append((name, loop.time()))

        for name, after in (("c", 86_400.0), ("a", 1.5), ("b", 3600.0)):
            loop.call_later(after, note, name)
        await asyncio.sleep(100_000)
        assert seen == [("a", 1.5), ("b", 3600.0), ("c", 86_400.0)]
        assert loop.time() == 100_000

    on_virtual_loop(main)


def test_a_grace_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="grace=-1"):
        VirtualLoop(-1)


def test_other_loops_have_the_systems_clock() -> None:
    from aiordma.wake import clock

    async def main() -> None:
        assert clock.of_asyncio_loop(asyncio.get_running_loop()) is clock.REAL
        before, now, after = time.monotonic_ns(), clock.REAL.now_ns(), time.monotonic_ns()
        assert before <= now <= after

    asyncio.run(main())
    if "uvloop" in sys.modules:
        sys.modules["uvloop"].run(main())
