"""Spans of calls of every kind: how they end, what came with the call, and where it went."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from aiordma import rpc
from aiordma.config import Config
from aiordma.observe.otel import ClientSpans, ServerSpans
from aiordma.testing.rpc import rpc_pair
from tests.health import until
from tests.roles import LOCAL
from tests.virtual import in_virtual_time
from tests.world import DEVICE

pytestmark = pytest.mark.anyio


class Happening:
    """What the handlers of every kind do, each of which does nothing else."""

    def __init__(self) -> None:
        self.do: Callable[[], Awaitable[object]] = anyio.lowlevel.checkpoint
        self.service = service = rpc.Service("t")

        async def plain(number: int) -> str:
            return str(await self.do())

        async def items(number: int) -> AsyncIterator[str]:
            yield str(await self.do())

        async def gather(numbers: AsyncIterator[int]) -> str:
            return str(await self.do())

        async def both(numbers: AsyncIterator[int]) -> AsyncIterator[str]:
            yield str(await self.do())

        for handler in (plain, items, gather, both):
            service.add(handler)


async def call(client: Any, kind: str, *given: object, **options: Any) -> str:
    """Call the handler of a kind; what it answers."""
    arguments = given or ((1,) if kind in ("plain", "items") else ())
    if kind == "plain":
        return str(await client.call("t.plain", *arguments, **options))
    async with client.stream(f"t.{kind}", *arguments, **options) as stream:
        if kind == "gather":
            await stream.end()
            return str(await stream.result())
        if kind == "both":
            await stream.end()
        return "".join([item async for item in stream])


KINDS = pytest.mark.parametrize("kind", ["plain", "items", "gather", "both"])


class Spans:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.client: list[Any] = [ClientSpans(self.provider)]
        self.server: list[Any] = [ServerSpans(self.provider)]

    def of(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.kind is kind]

    async def only(self, kind: SpanKind) -> tuple[dict[str, Any], ReadableSpan]:
        """The only span of this kind, once it has ended, and its attributes."""
        await until(lambda: bool(self.of(kind)), self.exporter.get_finished_spans)
        (span,) = self.of(kind)
        return dict(span.attributes or {}), span


@pytest.fixture
def spans() -> Spans:
    return Spans()


@KINDS
async def test_baggage_reaches_the_handler_and_goes_on(spans: Spans, kind: str) -> None:
    behind, before = Happening(), Happening()

    async def show() -> object:
        return baggage.get_baggage("who")

    async with rpc_pair(behind.service, client_interceptors=spans.client, interceptors=spans.server) as last:

        async def pass_on() -> object:
            seen = baggage.get_baggage("who")
            return f"{seen} {await call(last.client, kind)}"

        behind.do, before.do = show, pass_on
        async with rpc_pair(
            before.service, client_interceptors=spans.client, interceptors=spans.server
        ) as first:
            token = context.attach(baggage.set_baggage("who", "me"))
            try:
                assert await call(first.client, kind) == "me me"
            finally:
                context.detach(token)
            assert await call(first.client, kind) == "None None"
    traces = {span.context.trace_id for span in spans.exporter.get_finished_spans()}
    assert len(spans.exporter.get_finished_spans()) == 8
    assert len(traces) == 2


@KINDS
async def test_a_call_that_its_client_cancels(spans: Spans, kind: str) -> None:
    happening = Happening()
    entered = anyio.Event()

    async def wait() -> None:
        entered.set()
        await anyio.sleep_forever()

    happening.do = wait
    async with (
        rpc_pair(happening.service, client_interceptors=spans.client, interceptors=spans.server) as pair,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(call, pair.client, kind)
        await entered.wait()
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            attributes, span = await spans.only(SpanKind.SERVER)
    assert attributes["rpc.status_code"] == "CANCELLED"
    assert "error.type" not in attributes
    assert span.status.status_code is StatusCode.UNSET
    attributes, span = await spans.only(SpanKind.CLIENT)
    assert attributes["rpc.status_code"] == attributes["error.type"] == "CANCELLED"


@in_virtual_time
@KINDS
async def test_a_call_that_is_late(spans: Spans, kind: str) -> None:
    happening = Happening()
    happening.do = anyio.sleep_forever
    async with rpc_pair(
        happening.service, client_interceptors=spans.client, interceptors=spans.server
    ) as pair:
        with pytest.raises(TimeoutError):
            await call(pair.client, kind, timeout=60)
        for side in (SpanKind.SERVER, SpanKind.CLIENT):
            attributes, span = await spans.only(side)
            assert attributes["rpc.status_code"] == attributes["error.type"] == "DEADLINE_EXCEEDED"
            assert span.status.status_code is StatusCode.ERROR


@KINDS
async def test_a_handler_that_fails(spans: Spans, kind: str) -> None:
    happening = Happening()

    async def fail() -> None:
        raise ZeroDivisionError("oh")

    happening.do = fail
    async with rpc_pair(
        happening.service, client_interceptors=spans.client, interceptors=spans.server
    ) as pair:
        with pytest.raises(rpc.RpcError, match="UNKNOWN"):
            await call(pair.client, kind)
        attributes, span = await spans.only(SpanKind.SERVER)
    assert attributes["rpc.status_code"] == attributes["error.type"] == "UNKNOWN"
    assert span.status.status_code is StatusCode.ERROR
    assert [event.name for event in span.events] == ["exception"]


@KINDS
async def test_arguments_that_are_wrong(spans: Spans, kind: str) -> None:
    async with rpc_pair(Happening().service, interceptors=spans.server) as pair:
        with pytest.raises(rpc.RpcError, match="INVALID_ARGUMENT"):
            await call(pair.client, kind, "one", "two", "three")
        attributes, span = await spans.only(SpanKind.SERVER)
    assert attributes["rpc.status_code"] == "INVALID_ARGUMENT"
    assert attributes["rpc.method"] == span.name == f"t/{kind}"
    assert span.status.status_code is StatusCode.UNSET


async def test_methods_that_are_not_there(spans: Spans) -> None:
    async with rpc_pair(
        Happening().service, client_interceptors=spans.client, interceptors=spans.server
    ) as pair:
        with pytest.raises(rpc.RpcError, match="UNIMPLEMENTED"):
            await pair.client.call("t.x.nothing")
        attributes, span = await spans.only(SpanKind.SERVER)
        assert attributes["rpc.status_code"] == attributes["error.type"] == "UNIMPLEMENTED"
        assert (attributes["rpc.method"], attributes["rpc.method_original"]) == ("_OTHER", "t.x/nothing")
        assert span.name == "aiordma"
        (client,) = spans.of(SpanKind.CLIENT)
        assert span.parent is not None
        assert span.parent.span_id == client.context.span_id
        spans.exporter.clear()
        with pytest.raises(rpc.RpcError, match="UNIMPLEMENTED"):
            await pair.client.call("t.items", 1)
        attributes, span = await spans.only(SpanKind.SERVER)
        assert attributes["rpc.status_code"] == "UNIMPLEMENTED"
        assert attributes["rpc.method"] == "t/items"


async def test_metadata_that_is_none(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    from aiordma.rpc import client as module

    monkeypatch.setattr(module, "encode_metadata", lambda metadata: b"\xff\xff\xff")
    async with rpc_pair(Happening().service, interceptors=spans.server) as pair:
        await pair.client.call("t.plain", 1, metadata={"a": "b"})
        attributes, span = await spans.only(SpanKind.SERVER)
    assert span.parent is None
    assert attributes["rpc.status_code"] == "OK"


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
@pytest.mark.parametrize("pooled", [False, True], ids=["one", "pool"])
async def test_addresses(spans: Spans, mode: Any, pooled: bool) -> None:
    config = Config(device=DEVICE)
    async with rpc.serve(
        Happening().service, LOCAL, 0, config=config, mode=mode, interceptors=spans.server
    ) as server:
        port = server.port
        made: Any = (
            rpc.connect_pool([("localhost", port)], config=config, mode=mode, interceptors=spans.client)
            if pooled
            else rpc.connect("localhost", port, config=config, mode=mode, interceptors=spans.client)
        )
        async with made as client:
            for kind in ("plain", "both"):
                await call(client, kind)
                attributes, _ = await spans.only(SpanKind.CLIENT)
                assert (attributes["server.address"], attributes["server.port"]) == ("localhost", port)
                assert (attributes["network.peer.address"], attributes["network.peer.port"]) == (LOCAL, port)
                attributes, _ = await spans.only(SpanKind.SERVER)
                assert attributes["network.peer.address"] == LOCAL
                assert isinstance(attributes["network.peer.port"], int)
                # The name that the client used is not known here.
                assert "server.address" not in attributes
                spans.exporter.clear()


async def test_interceptors_are_told_of_refused_calls() -> None:
    told: list[tuple[str, bool, rpc.Code]] = []

    class Refusals(rpc.ServerInterceptor):
        def refused(self, call: rpc.RefusedCall, error: rpc.RpcError) -> None:
            told.append((call.method, call.known, error.code))
            raise ZeroDivisionError("which the client does not notice")

    async with rpc_pair(Happening().service, interceptors=[Refusals()]) as pair:
        with pytest.raises(rpc.RpcError, match="UNIMPLEMENTED"):
            await pair.client.call("t.nothing")
        with pytest.raises(rpc.RpcError, match="INVALID_ARGUMENT"):
            await pair.client.call("t.plain")
        assert await pair.client.call("t.plain", 1) == "None"
    assert told == [
        ("t.nothing", False, rpc.Code.UNIMPLEMENTED),
        ("t.plain", True, rpc.Code.INVALID_ARGUMENT),
    ]
