"""aiordma over packets: what it counts, and that a process with nothing to do does nothing."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

import aiordma
from tests.health import check_echo
from tests.loops import LOOPS
from tests.processes import process
from tests.roles import LOCAL, echo, statistics

if TYPE_CHECKING:
    from tests.program import Control

pytestmark = pytest.mark.slow

PACKETS = {"AIORDMA_DEVICE": "soft", "SOFTDEV_WIRE": "only", "AIORDMA_KEEPALIVE_MS": "0"}
#: Seconds of silence; a timer with nothing to do would have gone off in it, whatever its period below that.
SILENCE = 1.0


def wake_ups() -> dict[str, int]:
    """How often each thread of this process has slept and been woken."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) != threading.get_native_id():  # that one looks at the clock, and here
            lines = (task / "status").read_text().splitlines()
            found[task.name] = next(int(line.split()[1]) for line in lines if line.startswith("voluntary"))
    return found


async def talk_and_rest(control: Control, port: int) -> None:
    """A megabyte there and back, then nothing. Says what was counted, and how often threads woke up."""
    async with await aiordma.connect(LOCAL, port, mode="rdma") as stream:
        await check_echo(stream, bytes(1 << 20))
        counted = (await statistics())["wire"]
        while True:
            before = wake_ups()
            await anyio.sleep(SILENCE)
            after = wake_ups()
            control.say([counted, {name: after[name] - before.get(name, 0) for name in after}])
            if not await control.hear():
                break


async def serve(control: Control) -> None:
    async with await aiordma.listen(LOCAL, 0) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        control.say(listener.port)
        await control.heard_all()
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("loop", LOOPS)
def test_counters_and_rest(loop: str) -> None:
    with process(f"{__name__}:serve", loop, PACKETS) as server:
        with process(f"{__name__}:talk_and_rest", loop, PACKETS, port=server.hear()) as client:
            woken: dict[str, int] = {"?": 1}
            # What the last bytes are answered with may be late on a busy machine: only lasting unrest counts.
            for _ in range(20):
                counted, woken = client.hear()
                again = any(woken.values())
                client.say(again)
                if not again:
                    break
    assert counted["sent"] >= 256  # packets of 4 KiB
    assert counted["received"] >= 256
    assert counted["malformed"] == counted["bad_icrc"] == counted["wrong_peer"] == 0
    assert woken
    assert not any(woken.values()), f"threads that woke up in {SILENCE} s: {woken}"
