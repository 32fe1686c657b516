"""Tests run in virtual time or wait for conditions; what still reads real time is listed, with its reason.

On a busy machine, what a test expects to have happened after some time has not happened, and what it takes
for absent comes later. The list may only get shorter.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from . import real_time
from .tree import ROOT

TESTS = ROOT / "tests"
#: Rooms of programs that are run by hand and take their time, and of machines with clocks of their own.
OTHER_ROOMS = {"programs", "roots", "soak", "vm", "wheels"}
#: For each reason the files, and how often they read a clock or wait for a time.
ALLOWED: dict[str, dict[str, int]] = {
    "it ends a wait for a condition that never comes true; the condition is all that is tested": {
        "admin/looking.py": 3,
        "cgroup.py": 3,
        "cli/terminal.py": 4,
        "cli/demo/test_command.py": 3,
        "examples/stack.py": 3,
        "nowait.py": 2,
        "launch/served.py": 3,
        "processes.py": 4,
        "project/test_benchmarks_apps.py": 3,
        "softdev/test_strangers.py": 3,
        "softdev/test_wire.py": 6,
        "system/adversity/test_loops_after_deaths.py": 3,
        "system/operator/scene.py": 3,
        "tools.py": 3,
        "wake/test_beside.py": 3,
    },
    "a pause between two looks at a condition, of which nothing tells": {
        "compat/test_contract.py": 3,
        "compat/test_tls.py": 1,
        "compat/test_transport_end.py": 1,
        "datagrams/test_connection.py": 1,
        "examples/test_file_copy.py": 1,
        "faults/test_calls.py": 2,
        "faults/test_random.py": 2,
        "faults/test_streams.py": 1,
        "health.py": 1,
        "integrations/test_asyncio_only.py": 1,
        "integrations/test_httpx.py": 1,
        "launch/test_asking.py": 2,
        "launch/test_install.py": 1,
        "launch/test_trio.py": 1,
        "observe/test_otel.py": 1,
        "system/adversity/test_askers.py": 1,
        "system/integration/test_hang.py": 1,
        "system/valkey/test_streams.py": 1,
    },
    "what it limits never comes, however long it takes": {
        "channels/test_send_soon.py": 1,
        "compat/test_connection.py": 1,
        "compat/test_tls.py": 1,
        "compat/test_tls_ends.py": 1,
        "contracts/secure.py": 3,
        "integrations/test_httpx.py": 1,
        "launch/test_trio.py": 1,
        "negotiation/test_tls.py": 1,
        "observe/test_trace.py": 3,
        "rpc/test_hostile.py": 1,
        "rpc/test_network.py": 3,
        "rpc/test_pool.py": 1,
        "rpc/test_streaming.py": 1,
        "rpc/test_unary.py": 4,
        "streams/test_stream.py": 2,
        "system/adversity/test_clock.py": 1,
        "valkey/test_stream.py": 2,
        "wake/test_starter.py": 3,
        "wake/test_task_waiter.py": 3,
        "wake/test_interrupts.py": 1,
    },
    "it asks for another moment, and any moment will do": {
        "admin/roles.py": 1,
        "compat/test_between_turns.py": 1,
        "compat/test_tls_ends.py": 1,
        "faults/test_calls.py": 1,
        "memory/test_stopped.py": 1,
        "negotiation/test_arrival.py": 1,
        "negotiation/test_first_bytes.py": 1,
        "negotiation/test_pairings.py": 2,
        "negotiation/test_question.py": 1,
        "negotiation/test_silent_peers.py": 2,
        "negotiation/test_tcp_connect.py": 1,
        "rpc/test_memory.py": 2,
        "system/adversity/full_shm.py": 1,
        "system/adversity/test_clock.py": 1,
        "system/integration/test_transport_wakeups.py": 2,
        "system/integration/test_wakeups.py": 3,
        "system/leaks/test_rpc.py": 1,
        "system/leaks/test_unclosed.py": 1,
        "system/valkey/test_streams.py": 1,
    },
    "it takes at least so long, and longer does not matter": {
        "compat/test_on_the_ring.py": 2,
        "observe/test_trace.py": 9,
    },
    "it is the load of programs that a test looks at, or a pause before a picture is drawn": {
        "system/operator/__main__.py": 2,
        "system/operator/buyer.py": 2,
        "system/operator/reader.py": 1,
        "system/operator/shop.py": 1,
    },
    "its own subject is a date, or how the time of a loop goes": {
        "launch/test_asking.py": 2,
        "negotiation/test_plain_peers.py": 2,
        "observe/test_trace.py": 1,
        "testing/test_virtual_time.py": 19,
        "wake/test_task_waiter.py": 2,
    },
    "its time is virtual: it makes the loop itself, or is a part of such a test": {
        "datagrams/test_endpoint.py": 1,
        "datapath/test_spin.py": 10,
        "links/test_acks.py": 2,
        "negotiation/test_arrival.py": 15,
        "rpc/test_retry.py": 2,
        "testing/test_device_faults.py": 3,
    },
    "it counts how often threads wake up in a silence, again and again until one is silent": {
        "system/integration/test_roce.py": 1,
    },
}


def found(tests: Path) -> dict[str, list[int]]:
    """Files with lines that take real time, and these lines."""
    each = {path.relative_to(tests).as_posix(): path for path in sorted(tests.rglob("*.py"))}
    read = {name: real_time.lines(path) for name, path in each.items()}
    return {name: lines for name, lines in read.items() if lines and name.split("/")[0] not in OTHER_ROOMS}


def test_nothing_else_takes_real_time() -> None:
    """Put a new test on ``tests/virtual.py``, or let it wait for a condition by ``tests/health.py``."""
    allowed = Counter[str]()
    for files in ALLOWED.values():
        allowed.update(files)
    lines = found(TESTS)
    more = {name: at for name, at in lines.items() if len(at) > allowed[name]}
    assert more == {}
    # One that is gone leaves the list.
    assert {name: number for name, number in allowed.items() if number > len(lines.get(name, ()))} == {}


@pytest.mark.parametrize(
    "planted",
    [
        "    began = time.monotonic()",
        "    while perf_counter() < until:\n        pass",
        "    assert loop.time() - began < 1",
        "    assert anyio.current_time() - began < 1",
        "    await anyio.sleep(0.05)",
        "    time.sleep(some)",
        "    with anyio.move_on_after(0.05):\n        raise AssertionError(await stream.receive())",
        "    with anyio.fail_after(0.2):\n        await stream.receive()",
        "    await asyncio.wait_for(stream.receive(), 0.1)",
        "    await call(timeout=0.01)",
    ],
)
def test_what_is_planted_is_found(tmp_path: Path, planted: str) -> None:
    (tmp_path / "pipes").mkdir()
    path = tmp_path / "pipes" / "test_ring.py"
    path.write_text(f"async def test():\n{planted}\n", encoding="utf-8")
    assert found(tmp_path) == {"pipes/test_ring.py": [2]}
    path.write_text(f"@in_virtual_time\nasync def test():\n{planted}\n", encoding="utf-8")
    assert found(tmp_path) == {}


def test_what_waits_for_a_condition_is_not_found(tmp_path: Path) -> None:
    path = tmp_path / "test_ring.py"
    path.write_text(
        "async def test():\n"
        "    await anyio.sleep(0)\n"
        "    with anyio.fail_after(30), anyio.move_on_after(0):\n"
        "        await call(timeout=10)\n"
    )
    assert found(tmp_path) == {}
