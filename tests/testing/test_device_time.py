"""The software device's own timers in virtual time: both ends exchange packets, and none arrives any more."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from aiordma.wake import device_time
from tests.processes import PATIENCE
from tests.world import DEVICE

pytestmark = pytest.mark.skipif(DEVICE != "soft", reason="a device of the kernel has a time of its own")

# Nothing in the loop waits for a time between the device's retries: the loop's time when the stream has left
# RDMA is their sum.
_PROGRAM = """
import asyncio, sys
import anyio, trio, trio.testing
import aiordma
from aiordma.testing import DeviceFaults, VirtualLoop

CONFIG = aiordma.Config(device="soft", keepalive_ms=3_600_000)


async def main():
    over = anyio.Event()
    accepted = []

    async def serve(stream):
        accepted.append(stream)
        await over.wait()

    async with (
        await aiordma.listen("127.0.0.1", config=CONFIG) as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, serve)
        async with await aiordma.connect("127.0.0.1", listener.port, mode="rdma", config=CONFIG) as stream:
            await stream.send(b"one")
            while not accepted:
                await anyio.sleep(0.001)
            assert await accepted[0].receive() == b"one"
            with DeviceFaults() as faults:
                faults("wire_drop=1")
                began = anyio.current_time()
                await stream.send(b"two")
                assert await accepted[0].receive() == b"two"
                print("took", anyio.current_time() - began, accepted[0].path, flush=True)
            over.set()
        tasks.cancel_scope.cancel()


if sys.argv[1] == "asyncio":
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
else:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))
"""


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_packets_that_get_lost_are_repeated_in_the_loops_time(loop: str) -> None:
    environment = {**os.environ, "SOFTDEV_WIRE": "only"}
    times = set()
    for _ in range(2):
        program = subprocess.run(
            [sys.executable, "-c", _PROGRAM, loop],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert program.returncode == 0, program.stderr
        word, seconds, path = program.stdout.split()
        assert (word, path) == ("took", "tcp"), program.stderr
        times.add(seconds)
    # Seven retries after 2^14 times 4.096 us each. The loop may have waited for something else for a moment.
    assert float(times.pop()) == pytest.approx(7 * 4.096e-6 * 2**14, abs=0.01)
    assert not times, "each time the same"


@pytest.mark.parametrize("year", [0, 1, 2, 10])
def test_the_device_has_something_to_do_at_the_time_that_it_has_named(
    year: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a year its nanoseconds are more than a float can tell apart."""
    following_ns = year * 32_000_000_000_000_000
    now = 0.0

    def clock(now_ns: int) -> int:
        nonlocal following_ns
        if now_ns >= following_ns:
            following_ns = now_ns + 1_000_001
        return following_ns

    monkeypatch.setattr(device_time, "_find", lambda: clock)
    device = device_time.DeviceTime(lambda: now)
    for _ in range(1000):
        before, now = following_ns, device.due()
        device.due()
        assert following_ns > before
