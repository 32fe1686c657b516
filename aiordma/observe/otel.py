"""Spans of OpenTelemetry around calls, on both sides, with the context travelling in the calls' metadata.

Needs ``opentelemetry-api`` (the extra ``otel``), and does nothing until the program configures an SDK.
Nothing of it is imported unless this module is::

    from aiordma.observe.otel import ClientSpans, ServerSpans

    async with rpc.connect(host, port, interceptors=[ClientSpans()]) as client: ...
    async with rpc.serve(service, host, port, interceptors=[ServerSpans()]): ...

The propagator is the program's (``opentelemetry.propagate``; by default W3C ``traceparent`` and baggage).
Names and attributes follow OpenTelemetry's semantic conventions for RPC. How long each stage of a call took
is another matter: see ``aiordma.observe.trace``.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self

from anyio import EndOfStream

try:
    from opentelemetry import propagate, trace
    from opentelemetry.trace import SpanKind, Status, StatusCode
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "aiordma.observe.otel needs OpenTelemetry's API: install opentelemetry-api, or aiordma with its "
        "extra 'otel'",
        name=error.name,
    ) from error

from ..proto.errors import AioRdmaError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from types import TracebackType

    from opentelemetry.trace import Span, TracerProvider

__all__ = ["ClientSpans", "ServerSpans"]

_SYSTEM = "aiordma"
# Of a server only these are its own failures (as the conventions have it for gRPC, whose codes ours are):
# UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS.
_SERVER_FAULTS = frozenset((2, 4, 12, 13, 14, 15))
_OK, _CANCELLED = 0, 1


def _attributes(method: str) -> dict[str, str]:
    service, _, name = method.rpartition(".")
    return {"rpc.system": _SYSTEM, "rpc.service": service, "rpc.method": name}


def _failed(span: Span, exc: BaseException, *, server: bool) -> None:
    """Write the end of a failed call into its span."""
    code = getattr(exc, "code", None) if isinstance(exc, AioRdmaError) else None
    if code is not None:
        span.set_attribute("rpc.aiordma.status_code", int(code))
        kind = str(code.name)
    else:
        kind = type(exc).__qualname__
    if code is None or not server or int(code) in _SERVER_FAULTS:
        span.set_attribute("error.type", kind)
        span.set_status(Status(StatusCode.ERROR, str(exc)))
        if server and code is None and isinstance(exc, Exception):
            span.record_exception(exc)


class _Spans:
    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("aiordma", tracer_provider=tracer_provider)


class ClientSpans(_Spans):
    """An interceptor for clients: a span for each call, of kind ``CLIENT``.

    The span of a stream ends with the stream: with its last item, its failure, or its being closed.

    :param tracer_provider: None: the global one.
    """

    def _start(self, call: Any) -> Span:
        span = self._tracer.start_span(
            call.method.replace(".", "/"), kind=SpanKind.CLIENT, attributes=_attributes(call.method)
        )
        with trace.use_span(span):
            propagate.inject(call.metadata)
        return span

    async def unary(self, call: Any, proceed: Callable[[Any], Awaitable[Any]]) -> Any:
        span = self._start(call)
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                result = await proceed(call)
            except BaseException as exc:
                _failed(span, exc, server=False)
                raise
            span.set_attribute("rpc.aiordma.status_code", _OK)
            return result

    def stream(self, call: Any, proceed: Callable[[Any], Any]) -> Any:
        span = self._start(call)
        try:
            return _SpannedStream(proceed(call), span)
        except BaseException as exc:
            _failed(span, exc, server=False)
            span.end()
            raise


class _SpannedStream:
    """A client's stream that ends a span when it ends itself; in everything else the stream."""

    def __init__(self, stream: Any, span: Span) -> None:
        self._stream = stream
        self._span = span

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _end(self, exc: BaseException | None = None) -> None:
        if self._span.is_recording():
            if exc is not None:
                _failed(self._span, exc, server=False)
            else:
                self._span.set_attribute("rpc.aiordma.status_code", _OK)
            self._span.end()

    async def _watch(self, step: Awaitable[Any]) -> Any:
        try:
            return await step
        except (StopAsyncIteration, EndOfStream):
            self._end()
            raise
        except AioRdmaError as exc:
            self._end(exc)
            raise

    async def __aenter__(self) -> Self:
        await self._watch(self._stream.__aenter__())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._stream.__aexit__(kind, exc, traceback)
        finally:
            self._end(exc)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await self._watch(self._stream.__anext__())

    async def receive(self) -> Any:
        return await self._watch(self._stream.receive())

    async def send(self, item: Any) -> None:
        await self._watch(self._stream.send(item))

    async def result(self) -> Any:
        result = await self._watch(self._stream.result())
        self._end()
        return result

    def close(self) -> None:
        self._stream.close()
        self._end()

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            self._end()


class ServerSpans(_Spans):
    """An interceptor for servers: a span for each call, of kind ``SERVER``, below the client's span.

    :param tracer_provider: None: the global one.
    """

    def _start(self, call: Any) -> Span:
        metadata = {key: value for key, value in call.context.metadata.items() if isinstance(value, str)}
        name = call.method.name
        return self._tracer.start_span(
            name.replace(".", "/"),
            context=propagate.extract(metadata),
            kind=SpanKind.SERVER,
            attributes={**_attributes(name), "network.peer.address": call.context.peer},
        )

    async def unary(self, call: Any, proceed: Callable[[Any], Awaitable[Any]]) -> Any:
        span = self._start(call)
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                result = await proceed(call)
            except BaseException as exc:
                _failed(span, exc, server=True)
                raise
            span.set_attribute("rpc.aiordma.status_code", _OK)
            return result

    async def stream(self, call: Any, proceed: Callable[[Any], Any]) -> AsyncIterator[Any]:
        span = self._start(call)
        # The handler's own task runs this generator from its first step to its last.
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                async with aclosing(proceed(call)) as items:
                    async for item in items:
                        yield item
            except GeneratorExit:
                span.set_attribute("rpc.aiordma.status_code", _CANCELLED)
                raise
            except BaseException as exc:
                _failed(span, exc, server=True)
                raise
            span.set_attribute("rpc.aiordma.status_code", _OK)
