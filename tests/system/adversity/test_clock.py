"""The clock on the wall jumps by years, back and forth: nothing waits for it, and nothing times out by it."""

from __future__ import annotations

import re
import time
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

import aiordma
from aiordma import rpc
from aiordma.config import Config
from tests.health import check_echo, check_end
from tests.roles import LOCAL, echo

PACKAGE = Path(aiordma.__file__).parent
DEVICE = PACKAGE.parent / "softdev" / "src"

#: Who may ask what time it is, and what for. Nobody may wait for it.
STAMPS = {
    "softdev/src/roce/observe.c": "stamps of packets in a capture",
    "softdev/src/verbs/cq_ex.c": "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK",
    "admin/describe.py": "since when a send waits, to compare two processes; how long, by the loop's clock",
    "admin/report.py": "when a report was made",
    "cli/debug_bundle/command.py": "when a bundle was made",
    "measure/mesh.py": "when a mesh was measured",
    "measure/perf.py": "when a report was made",
    "negotiation/plain_peers.py": "findings that outlive the process; one from the future is not believed",
    "memory/region.py": "what a descriptor says of its end; the owner ends it by its own timer",
    "observe/capture.py": "stamps of packets in a capture",
    "observe/connections.py": "when a reason for TCP was first and last given",
    "observe/events.py": "when an event was, for people",
    "observe/leak_watch.py": "when a leak was found; how long it lasts is told by the loop's clock",
    "observe/leaks.py": "when a leak was found",
    "observe/trace.py": "stamps of spans",
}
WALL = re.compile(
    r"\bCLOCK_REALTIME\b|\bgettimeofday\(|\btime\.time(?:_ns)?\(|\btime\(NULL\)|\bdatetime\.(?:now|utcnow)\("
    r"|\bfrom time import[^\n]*\btime(?:_ns)?\b|\bpthread_cond_timedwait\(|\bsem_timedwait\("
)


def test_nothing_else_looks_at_it() -> None:
    sources = [
        path
        for path in (*PACKAGE.rglob("*"), *DEVICE.rglob("*"))
        if path.suffix in {".py", ".pyx", ".pxd", ".c", ".h"}
    ]
    found = {
        str(path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else PACKAGE.parent))
        for path in sources
        if WALL.search(path.read_text())
    }
    assert found == set(STAMPS)


@pytest.mark.anyio
async def test_streams_and_calls_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(4)
    for name, unit in (("time", 1), ("time_ns", 10**9)):
        monkeypatch.setattr(time, name, lambda unit=unit: unit * random.randrange(1, 2**32))

    service = rpc.Service("clock")

    @service.method
    async def same(data: bytes) -> bytes:
        return data

    @service.method
    async def never() -> None:
        await anyio.sleep_forever()

    config = Config.from_env(keepalive_ms=20)
    async with (
        await aiordma.listen(LOCAL, config=config) as listener,
        rpc.serve(service, LOCAL, config=config) as calls,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, echo)
        async with await aiordma.connect(LOCAL, listener.port, mode="rdma", config=config) as stream:
            for _ in range(3):
                await check_echo(stream)
                await anyio.sleep(0.05)  # keepalives pass meanwhile, or do not
            await check_end(stream)
        async with rpc.connect(LOCAL, calls.port, mode="rdma", config=config) as client:
            for size in (10, 100_000):
                assert await client.call("clock.same", bytes(size), timeout=30) == bytes(size)
            with pytest.raises(rpc.RpcTimeout):
                await client.call("clock.never", timeout=0.05)
        tasks.cancel_scope.cancel()


def test_its_own_check() -> None:
    """Each pattern is found where it stands alone."""
    samples: list[Any] = [
        "time.time()",
        "time.time_ns()",
        "clock_gettime(CLOCK_REALTIME, &now)",
        "time(NULL)",
    ]
    assert all(WALL.search(sample) for sample in samples)
    assert not WALL.search("time.monotonic(); from time import monotonic_ns; anyio.current_time()")
