"""The metrics for Prometheus: what they count, how they are named, and that any thread may scrape."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import aiordma
from aiordma import rpc
from aiordma.observe import connections, leaks, trace
from aiordma.observe.prometheus import Collector
from tests.health import until
from tests.roles import echo
from tests.tuned import tuned
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")

CONFIG = aiordma.Config(device=DEVICE)

service = rpc.Service("test")


@service.method
async def double(value: int) -> int:
    return 2 * value


@service.method
async def add_up(count: int) -> int:
    return sum(range(count))


def scraped() -> dict[str, dict[tuple[str, ...], float]]:
    """Values by the metric's name and its labels' values, in the order of their names, as scraped."""
    registry = CollectorRegistry()
    registry.register(Collector())
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(value for _, value in sorted(sample.labels.items()))] = (
                sample.value
            )
    return found


@pytest.fixture(autouse=True)
def fresh_counts() -> Iterator[None]:
    """Earlier tests of this process have counted, too."""
    for counter in connections.counts:
        counter.clear()
    trace.reset()
    trace.recorder.slow_counts.update(request=0, handler=0)
    leaks.reset()
    yield
    trace.configure(sample=0, slow_request_us=0, slow_handler_us=0)
    trace.reset()


def total(values: dict[tuple[str, ...], float]) -> float:
    return sum(values.values())


@pytest.mark.anyio
async def test_streams_links_and_memory_are_counted() -> None:
    async with (
        await aiordma.listen("127.0.0.1", config=CONFIG) as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, echo)
        async with await aiordma.connect("127.0.0.1", listener.port, config=CONFIG, mode="rdma") as stream:
            async with await aiordma.connect("127.0.0.1", listener.port, config=CONFIG, mode="tcp") as plain:
                for each in (stream, plain):
                    await each.send(b"x" * 1000)
                    await each.receive()
                found = await anyio.to_thread.run_sync(scraped)
                assert found["aiordma_open_connections"] == {("rdma",): 2, ("tcp",): 2}
                assert found["aiordma_connections_total"] == {
                    ("stream", "rdma", "client"): 1,
                    ("stream", "rdma", "server"): 1,
                    ("stream", "tcp", "client"): 1,
                    ("stream", "tcp", "server"): 1,
                }
                reasons = found["aiordma_fallbacks_total"]
                assert total(reasons) == 2
                assert ("", "DISABLED", "began") in reasons
                assert total(found["aiordma_links"]) == 2
                assert total(found["aiordma_link_written_bytes_total"]) == 2000
                assert total(found["aiordma_registered_memory_bytes"]) > 0
                assert total(found["aiordma_completions_total"]) > 0
                assert found["aiordma_open_leaks"] == {(kind,): 0 for kind in leaks.KINDS}
                assert total(found["aiordma_slow_requests_total"]) == 0
                assert await aiordma.switch_path(stream, "tcp", reason="a test") == 1
                await until(lambda: stream.path == "tcp")
                await until(lambda: total(scraped()["aiordma_fallbacks_total"]) == 4)
                assert scraped()["aiordma_fallbacks_total"]["", "SWITCHED", "left"] == 1
        tasks.cancel_scope.cancel()


@pytest.mark.asyncio
async def test_what_links_have_counted_outlives_them() -> None:
    config = tuned(device=DEVICE, link_idle_ms=1)
    async with (
        await aiordma.listen("127.0.0.1", config=config) as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, echo)
        async with await aiordma.connect("127.0.0.1", listener.port, config=config, mode="rdma") as stream:
            await stream.send(b"x" * 1000)
            await stream.receive()
        await until(lambda: not total(scraped().get("aiordma_links", {})))
        assert total(scraped()["aiordma_link_written_bytes_total"]) == 2000
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_calls_are_measured_where_they_are_traced() -> None:
    trace.configure(sample=1)
    async with rpc.serve(service, "127.0.0.1", 0, config=CONFIG) as server:
        async with rpc.connect("127.0.0.1", server.port, config=CONFIG) as client:
            for _ in range(5):
                assert await client.call("test.double", 4) == 8
            name = "aiordma_traced_call_duration_seconds"
            found = scraped()
            quantiles = found[name]
            assert found[f"{name}_count"] == {("test.double", "client"): 5, ("test.double", "server"): 5}
            assert 0 < quantiles["test.double", "0.5", "client"] <= quantiles["test.double", "0.99", "client"]
            assert found[f"{name}_sum"]["test.double", "client"] < 5


@pytest.mark.anyio
async def test_what_is_slow_and_what_leaks_is_counted() -> None:
    config = aiordma.Config(device=DEVICE, slow_request_us=1, slow_handler_us=1, leak_after_ms=50)
    async with rpc.serve(service, "127.0.0.1", 0, config=config) as server:
        async with (
            rpc.connect("127.0.0.1", server.port, config=config) as client,
            await aiordma.listen("127.0.0.1", config=config) as listener,
            await aiordma.connect("127.0.0.1", listener.port, config=config, mode="rdma"),
        ):
            for _ in range(5):
                await client.call("test.add_up", 100_000)  # some milliseconds
            found = scraped()
            assert found["aiordma_slow_requests_total"] == {(): 5}
            assert found["aiordma_slow_handlers_total"] == {(): 5}
            # Its other end waits for accept(), so that nobody uses that either.
            await until(lambda: scraped()["aiordma_open_leaks"]["idle",] == 2)
            found = scraped()
            assert found["aiordma_leaks_total"]["idle",] == 2
            assert found["aiordma_leaked_bytes"]["idle",] > 0


def test_without_an_engine_there_is_nothing_but_zero() -> None:
    found = scraped()
    assert found["aiordma_open_connections"] == {("rdma",): 0, ("tcp",): 0}
    assert "aiordma_links" not in found


@pytest.mark.asyncio
async def test_names_follow_the_conventions() -> None:
    async with await aiordma.listen("127.0.0.1", config=CONFIG):
        families: list[Any] = list(Collector().collect())
    for family in families:
        assert re.fullmatch(r"aiordma(_[a-z]+)+", family.name)
        assert family.documentation.endswith(".")
        if family.type == "gauge":
            assert not family.name.endswith(("_total", "_count", "_sum"))
        for unit in ("seconds", "bytes"):
            assert unit not in family.name or family.name.endswith(unit)
    assert len({family.name for family in families}) == len(families)
