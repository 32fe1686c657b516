"""Traced calls: what both ends know of them afterwards, and what is logged."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator  # annotations of handlers
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from aiordma import rpc
from aiordma.config import Config
from aiordma.links import engine as engines
from aiordma.observe import trace
from aiordma.proto.trace import RateLimit, Stages
from aiordma.testing.rpc import rpc_pair
from tests.health import until
from tests.streams.pairs import negotiated_pair
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio

service = rpc.Service("t")


@service.method
def echo(data: bytes) -> bytes:
    return data


@service.method
async def echo_async(data: bytes) -> bytes:
    return data


@service.method
async def slow(seconds: float) -> None:
    await anyio.sleep(seconds)


@service.method
def fail() -> None:
    raise rpc.RpcError(rpc.Code.NOT_FOUND, "nothing here")


@service.method
async def never() -> None:
    await anyio.sleep_forever()


@pytest.fixture(autouse=True)
def bare_again() -> Iterator[None]:
    def reset() -> None:
        # A test before this one, of other files too, may have logged as much as is allowed in a second.
        trace.recorder._limits = {name: type(limit)() for name, limit in trace.recorder._limits.items()}
        trace.reset()

    before = trace.settings()
    reset()
    yield
    trace.recorder.configure(before)
    reset()


async def test_bare_mode_takes_the_time_of_one_call_in_64() -> None:
    async with rpc_pair(service) as pair:
        for _ in range(129):
            await pair.client.call("t.echo", b"x")
    assert trace.recent() == []  # nothing of a single one is kept
    found = trace.summary()
    assert {key: each.total.calls for key, each in found.items()} == {
        ("client", "t.echo"): 3,
        ("server", "t.echo"): 3,
    }
    assert all(each.stages == {} and 0 < each.total.p50 <= each.total.p99 for each in found.values())


@pytest.mark.parametrize("method", ["echo", "echo_async"])
async def test_both_ends_know_the_stages(method: str) -> None:
    trace.configure(sample=1)
    async with rpc_pair(service) as pair:
        for _ in range(5):
            assert await pair.client.call(f"t.{method}", b"x" * 64) == b"x" * 64
    records = trace.recent()
    calls = [record for record in records if record.side == "client"]
    handled = [record for record in records if record.side == "server"]
    assert len(calls) == len(handled) == 5
    assert [record.number for record in calls] == [record.number for record in handled]
    for call, other in zip(calls, handled, strict=True):
        assert call.method == other.method == f"t.{method}"
        assert call.code == other.code == 0
        assert call.stages is not None
        assert sum(call.stages) == call.total
        assert min(call.stages) >= 0
        assert call.stages.handler == other.handler
        assert other.waited == call.stages.waited
        assert other.total <= call.total
        assert abs(call.began - time.time()) < 60
    summary = trace.summary()
    assert summary["client", f"t.{method}"].total.calls == 5
    assert summary["server", f"t.{method}"].stages["handler"].calls == 5
    assert set(summary["client", f"t.{method}"].stages) == set(Stages._fields)


async def test_a_server_answers_traced_calls_in_either_mode() -> None:
    """Modes are the client's choice; here both ends are one process, so the mode changes in between."""
    async with rpc_pair(service) as pair:
        trace.configure(sample=1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pair.client.call, "t.slow", 0.01)
            await anyio.wait_all_tasks_blocked()
            trace.configure(sample=0)
    (call,) = [record for record in trace.recent() if record.side == "client"]
    assert call.stages is not None
    assert call.stages.handler >= 9_000_000


async def test_failed_and_cancelled_calls_are_recorded_with_their_code() -> None:
    trace.configure(sample=1)
    async with rpc_pair(service) as pair:
        with pytest.raises(rpc.RpcError, match="nothing here"):
            await pair.client.call("t.fail")
        with pytest.raises(rpc.RpcTimeout):
            await pair.client.call("t.never", timeout=0.01)
        with anyio.move_on_after(0.01):
            await pair.client.call("t.never")
    found = [(record.method, record.code) for record in trace.recent() if record.side == "client"]
    codes = rpc.Code
    assert found == [
        ("t.fail", codes.NOT_FOUND),
        ("t.never", codes.DEADLINE_EXCEEDED),
        ("t.never", codes.CANCELLED),
    ]
    failed = next(record for record in trace.recent() if record.method == "t.fail")
    assert failed.stages is not None


async def test_a_share_of_the_calls() -> None:
    trace.configure(sample=4)
    async with rpc_pair(service) as pair:
        for _ in range(40):
            await pair.client.call("t.echo", b"x")
    assert len([record for record in trace.recent() if record.side == "client"]) == 10


async def test_only_the_last_ones_are_kept() -> None:
    trace.configure(sample=1, keep=3)
    async with rpc_pair(service) as pair:
        for _ in range(10):
            await pair.client.call("t.echo", b"x")
    records = [record for record in trace.recent() if record.side == "client"]
    assert len(records) == 3
    numbers = [record.number for record in trace.recent()]
    assert [record.number for record in trace.recent(2)] == numbers[-2:]
    assert trace.recent(0) == []
    summary = trace.summary()["client", "t.echo"]
    assert summary.total.calls == 10
    assert summary.stages["out"].calls == 3


@pytest.mark.parametrize("sample", [0, 1])
async def test_slow_requests_are_logged(sample: int, caplog: pytest.LogCaptureFixture) -> None:
    trace.configure(sample=sample, slow_request_us=5000)
    async with rpc_pair(service) as pair:
        await pair.client.call("t.slow", 0.006)
        with pytest.raises(rpc.RpcError):
            await pair.client.call("t.slow", 10.0, timeout=0.006)
    logged = [record.getMessage() for record in caplog.records if "slow request" in record.message]
    assert len(logged) == 2
    assert all(re.search(r"t\.slow to \S+ took \d+\.\d+ ms", text) for text in logged)
    assert ("handler" if sample else "in req-res mode only") in logged[0]


async def test_slow_handlers_are_logged_a_few_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    trace.configure(slow_handler_us=1)
    async with rpc_pair(service) as pair:
        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(pair.client.call, "t.slow", 0.0)
    logged = [record for record in caplog.records if "slow handler" in record.message]
    assert 5 <= len(logged) < 50
    assert trace.recorder._limits["handler"].refused == 50 - len(logged)
    assert {record.method for record in trace.recent()} == {"t.slow"}
    assert {record.number for record in trace.recent()} == {0}


async def test_slow_handlers_of_streams_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def stream(n: int) -> AsyncIterator[int]:
        for i in range(n):
            await anyio.sleep(0.003)
            yield i

    async def fails(n: int) -> AsyncIterator[int]:
        yield n
        await anyio.sleep(0.003)
        raise rpc.RpcError(rpc.Code.NOT_FOUND, "no")

    async def collect(items: AsyncIterator[int]) -> int:
        return sum([item async for item in items])

    made = rpc.Service("s")
    for handler in (stream, fails, collect):
        made.add(handler)
    trace.configure(slow_handler_us=2000)
    async with rpc_pair(made) as pair:
        assert [item async for item in pair.client.stream("s.stream", 2)] == [0, 1]
        with pytest.raises(rpc.RpcError, match="no"):
            assert [item async for item in pair.client.stream("s.fails", 1)] == []
        async with pair.client.stream("s.collect") as call:
            await call.send(1)
            await anyio.sleep(0.003)
            await call.end()
            assert await call.result() == 1
    logged = [record.getMessage() for record in caplog.records if "slow handler" in record.message]
    assert [re.search(r"s\.\w+", text)[0] for text in logged] == ["s.stream", "s.fails", "s.collect"]  # type: ignore[index]


async def test_what_holds_up_an_engine_is_logged_as_a_slow_poll(caplog: pytest.LogCaptureFixture) -> None:
    config = Config(device=DEVICE, ring_bytes=16384, slow_poll_us=2000)
    engine = await engines.current(config)
    one, other = await negotiated_pair(config=config, mode="rdma")
    try:
        called = anyio.Event()

        def hold() -> None:
            until = time.monotonic() + 0.004
            while time.monotonic() < until:
                pass
            called.set()

        # On a busy machine others were slow already, and five a second are logged.
        trace.recorder._limits["poll"] = RateLimit()
        other._pipe.on_readable = hold
        await one.send(b"x")
        await called.wait()
        await anyio.lowlevel.checkpoint()
        other._pipe.on_readable = None
        statistics = engine.statistics()
        assert statistics["slow_polls"] >= 1
        assert statistics["slowest_poll_ns"] >= 4_000_000
        assert statistics["polls"] > statistics["empty_polls"] > 0
        assert trace.slow_polls()["slow_polls"] >= statistics["slow_polls"]
        trace.configure(slow_poll_us=0)
        other._pipe.on_readable = hold
        called = anyio.Event()
        await one.send(b"x")
        await called.wait()
        await anyio.lowlevel.checkpoint()
        assert engine.statistics()["slow_polls"] == statistics["slow_polls"]
    finally:
        await one.aclose()
        await other.aclose()
        engine.close()
    logged = [record.getMessage() for record in caplog.records if "slow poll" in record.message]
    assert any("what a batch of completions called took" in text for text in logged)


def compute(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


async def test_a_loop_that_another_task_blocks_is_a_slow_poll(caplog: pytest.LogCaptureFixture) -> None:
    """Its engine sleeps, and has asked for nothing: the task blocks what the device would wake."""
    config = Config(device=DEVICE, slow_poll_us=20_000, busy_poll_us=0)
    engine = await engines.current(config)
    engine.poller.set_busy_poll(0)
    try:
        for _ in range(5):
            await until(lambda: engine.loop_watch.running and engine.poller.is_armed)
            await anyio.sleep(0.03)  # the timer runs, at whatever time of its period
            slow = partial(_more_than, engine, engine.statistics()["slow_polls"])
            compute(0.1)
            await until(slow, engine.statistics)
        assert engine.statistics()["slowest_poll_ns"] >= 60_000_000
        trace.configure(slow_poll_us=0)
        await until(lambda: not engine.loop_watch.running)
    finally:
        engine.close()
    assert not engine.loop_watch.running
    logged = [record.getMessage() for record in caplog.records if "slow poll" in record.message]
    assert any("the event loop's way back to its engine took" in text for text in logged)


def _more_than(engine: engines.Engine, count: int) -> bool:
    slow_polls: int = engine.statistics()["slow_polls"]
    return slow_polls > count


async def test_without_a_slow_poll_none_is_the_slowest() -> None:
    config = Config(device=DEVICE, ring_bytes=16384, slow_poll_us=3_600_000_000)
    engine = await engines.current(config)
    one, other = await negotiated_pair(config=config, mode="rdma")
    async with one, other:
        await one.send(b"x")
        assert await other.receive() == b"x"
        compute(0.01)
        await anyio.lowlevel.checkpoint()
        statistics = engine.statistics()
        assert (statistics["slow_polls"], statistics["slowest_poll_ns"]) == (0, 0)
    engine.close()


def test_settings_are_checked() -> None:
    for changes, text in (
        ({"sample": -1}, "trace_sample=-1"),
        ({"keep": 0}, "keep=0"),
        ({"keep": True}, "keep=True"),
        ({"slow_poll_us": -1}, "slow_poll_us=-1"),
        ({"colour": 1}, "unknown setting 'colour'"),
    ):
        before = trace.settings()
        with pytest.raises(ValueError, match=re.escape(text)):
            trace.configure(**changes)
        assert trace.settings() == before


def test_defaults_here_and_in_the_settings_are_the_same() -> None:
    config = Config()
    for name, field in trace._SETTINGS.items():
        assert getattr(config, field) == getattr(trace.Settings(), name)


def test_settings_of_a_connection_do_not_take_back_what_was_configured() -> None:
    trace.configure(sample=1, slow_request_us=7)
    trace.recorder.install(Config(slow_handler_us=9))
    assert trace.settings() == trace.Settings(sample=1, slow_request_us=7, slow_handler_us=9)
