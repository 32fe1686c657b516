"""Spans of OpenTelemetry: one trace over both ends, with the conventions' names and attributes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from aiordma import rpc
from aiordma.observe.otel import ClientSpans, ServerSpans
from aiordma.testing.rpc import rpc_pair

pytestmark = pytest.mark.anyio

service = rpc.Service("t")


@service.method
async def current() -> str:
    """The trace that the handler runs in."""
    return f"{trace.get_current_span().get_span_context().trace_id:032x}"


@service.method
async def fail(code: int) -> None:
    if code == 0:
        raise ZeroDivisionError("oh")
    raise rpc.RpcError(rpc.Code(code), "as asked")


@service.method
async def count(to: int) -> AsyncIterator[int]:
    for number in range(to):
        yield number
    if to > 100:
        raise rpc.RpcError(rpc.Code.OUT_OF_RANGE, "too far")


@service.method
async def total(numbers: AsyncIterator[int]) -> int:
    return sum([number async for number in numbers])


class Spans:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.interceptors: dict[str, Any] = {
            "client_interceptors": [ClientSpans(self.provider)],
            "interceptors": [ServerSpans(self.provider)],
        }

    def both(self) -> tuple[ReadableSpan, ReadableSpan]:
        """The client's and the server's of the only call."""
        spans = self.exporter.get_finished_spans()
        self.exporter.clear()
        (client,) = [span for span in spans if span.kind is SpanKind.CLIENT]
        (server,) = [span for span in spans if span.kind is SpanKind.SERVER]
        assert client.context.trace_id == server.context.trace_id
        assert server.parent is not None
        assert server.parent.span_id == client.context.span_id
        assert server.parent.is_remote
        assert client.name == server.name
        return client, server


@pytest.fixture
def spans() -> Spans:
    return Spans()


async def test_one_trace_over_both_ends(spans: Spans) -> None:
    async with rpc_pair(service, **spans.interceptors) as pair:
        told = await pair.client.call("t.current")
    client, server = spans.both()
    assert client.name == "t/current"
    assert told == f"{client.context.trace_id:032x}"
    for span in (client, server):
        assert span.attributes is not None
        assert span.attributes["rpc.system.name"] == "aiordma"
        assert span.attributes["rpc.method"] == "t/current"
        assert span.attributes["rpc.status_code"] == span.attributes["rpc.response.status_code"] == "OK"
        assert not {"rpc.system", "rpc.service", "error.type"} & set(span.attributes)
        assert span.status.status_code is StatusCode.UNSET


async def test_calls_are_below_the_callers_span(spans: Spans) -> None:
    async with rpc_pair(service, **spans.interceptors) as pair:
        with spans.provider.get_tracer("test").start_as_current_span("outer") as outer:
            await pair.client.call("t.current")
            assert trace.get_current_span() is outer
    client, _ = spans.both()
    assert client.parent is not None
    assert client.parent.span_id == outer.get_span_context().span_id


@pytest.mark.parametrize(
    ("code", "kind", "server_fault"),
    [(0, "UNKNOWN", True), (5, "NOT_FOUND", False), (13, "INTERNAL", True), (14, "UNAVAILABLE", True)],
)
async def test_failures(spans: Spans, code: int, kind: str, server_fault: bool) -> None:
    async with rpc_pair(service, **spans.interceptors) as pair:
        with pytest.raises(rpc.RpcError):
            await pair.client.call("t.fail", code)
    client, server = spans.both()
    assert client.attributes is not None
    assert client.attributes["error.type"] == kind
    assert client.attributes["rpc.status_code"] == kind
    assert server.attributes is not None
    assert server.attributes["rpc.status_code"] == kind
    assert server.attributes.get("error.type") == (kind if server_fault else None)
    assert client.status.status_code is StatusCode.ERROR
    assert (server.status.status_code is StatusCode.ERROR) == server_fault
    assert [event.name for event in server.events] == (["exception"] if code == 0 else [])


async def test_streams(spans: Spans) -> None:
    async with rpc_pair(service, **spans.interceptors) as pair:
        async with pair.client.stream("t.count", 3, returns=int) as stream:
            assert [item async for item in stream] == [0, 1, 2]
            assert spans.exporter.get_finished_spans()
        client, server = spans.both()
        assert client.status.status_code is server.status.status_code is StatusCode.UNSET
        async with pair.client.stream("t.count", 101, returns=int) as stream:
            with pytest.raises(rpc.RpcError, match="too far"):
                [item async for item in stream]
        client, server = spans.both()
        assert client.status.status_code is StatusCode.ERROR
        assert client.attributes is not None
        assert client.attributes["error.type"] == "OUT_OF_RANGE"
        async with pair.client.stream("t.total", returns=int) as stream:
            for number in range(4):
                await stream.send(number)
            assert await stream.result() == 6
        spans.both()


async def test_a_stream_left_early_ends_its_spans(spans: Spans) -> None:
    async with rpc_pair(service, **spans.interceptors) as pair:
        async with pair.client.stream("t.count", 50, returns=int, window=64) as stream:
            async for item in stream:
                if item == 3:
                    break
        with anyio.fail_after(5):
            while len(spans.exporter.get_finished_spans()) < 2:  # noqa: ASYNC110
                await anyio.sleep(0.001)
    spans.both()


async def test_a_client_that_does_not_trace(spans: Spans) -> None:
    async with rpc_pair(service, interceptors=[ServerSpans(spans.provider)]) as pair:
        await pair.client.call("t.current", metadata={"traceparent": "nonsense", "other-bin": b"\xff"})
    (server,) = spans.exporter.get_finished_spans()
    assert server.parent is None


def test_nothing_is_imported_unless_asked_for() -> None:
    program = (
        "import sys, aiordma, aiordma.rpc, aiordma.observe.trace\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
        "sys.modules['opentelemetry'] = None\n"
        "try:\n    import aiordma.observe.otel\n"
        "except ModuleNotFoundError as error:\n    assert 'opentelemetry-api' in str(error)\n"
        "else:\n    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
