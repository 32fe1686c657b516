"""Spans of OpenTelemetry around calls, on both sides, with the context travelling in the calls' metadata.

Needs ``opentelemetry-api`` (the extra ``otel``), and does nothing until the program configures an SDK.
Nothing of it is imported unless this module is::

    from aiordma.observe.otel import ClientSpans, ServerSpans

    async with rpc.connect(host, port, interceptors=[ClientSpans()]) as client: ...
    async with rpc.serve(service, host, port, interceptors=[ServerSpans()]): ...

The propagator is the program's (``opentelemetry.propagate``; by default W3C ``traceparent`` and baggage).
What it extracts holds in the handler, and goes on with the calls that the handler makes. Names and attributes
follow OpenTelemetry's semantic conventions for RPC, version 1.45. How long each stage of a call took is
another matter: see ``aiordma.observe.trace``.
"""

from __future__ import annotations

from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, Self

from anyio import EndOfStream, get_cancelled_exc_class

try:
    from opentelemetry import context as contexts
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
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from types import TracebackType

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

__all__ = ["ClientSpans", "ServerSpans"]

_SYSTEM = "aiordma"
# Of a server only these are its own failures (as the conventions have it for gRPC, whose codes ours are).
_SERVER_FAULTS = frozenset(
    ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
)
_OK, _CANCELLED, _UNKNOWN, _UNAVAILABLE = "OK", "CANCELLED", "UNKNOWN", "UNAVAILABLE"
_OTHER = "_OTHER"

Address = tuple[str, int]


def qualified(method: str) -> str:
    """``"shop.price"`` as the conventions write it: ``"shop/price"``."""
    service, dot, name = method.rpartition(".")
    return f"{service}/{name}" if dot else name


def _set_code(span: Span, code: str) -> None:
    span.set_attribute("rpc.status_code", code)
    span.set_attribute("rpc.response.status_code", code)  # its name before version 1.45


def _code_of(exc: BaseException) -> str | None:
    """The name of the code that a failed call ended with, None: it has none."""
    if isinstance(exc, AioRdmaError) and hasattr(exc, "not_started"):  # an RpcError
        code: Any = getattr(exc, "code", _UNKNOWN)
        return str(getattr(code, "name", code))
    if isinstance(exc, (get_cancelled_exc_class(), GeneratorExit)):
        return _CANCELLED
    return None


def _code_at_server(exc: BaseException, context: Any) -> str:
    """The same of a handler, of which the client is told a code in any case."""
    cancelled = isinstance(exc, get_cancelled_exc_class())
    code = _code_of(exc)
    if code is not None and not cancelled and not isinstance(exc, GeneratorExit):
        return code
    # What a handler that is being stopped does with its streams fails with an error of aiordma's.
    if context.stop_code is not None and (code is not None or isinstance(exc, AioRdmaError)):
        return str(context.stop_code.name)
    if cancelled or isinstance(exc, (KeyboardInterrupt, SystemExit)):
        return _UNAVAILABLE  # not by the client: the server ends
    return code or _UNKNOWN


def _failed_client(span: Span, exc: BaseException) -> None:
    """Write the end of a failed call into its span."""
    code = _code_of(exc)
    if code is not None:
        _set_code(span, code)
    span.set_attribute("error.type", code or type(exc).__qualname__)
    span.set_status(Status(StatusCode.ERROR, str(exc)))


def _failed_server(span: Span, exc: BaseException, context: Any) -> None:
    code = _code_at_server(exc, context)
    _set_code(span, code)
    if code in _SERVER_FAULTS:
        span.set_attribute("error.type", code)
        span.set_status(Status(StatusCode.ERROR, str(exc)))
        if _code_of(exc) is None and isinstance(exc, Exception):
            span.record_exception(exc)


def _address_attributes(server: Address | None, peer: Address | None) -> dict[str, str | int]:
    """The server's address as the program gave it, and that of the connection's other end."""
    places: dict[str, str | int] = {}
    if server is not None:
        places["server.address"], places["server.port"] = server[0], server[1]
    if peer is not None:
        places["network.peer.address"], places["network.peer.port"] = peer[0], peer[1]
    return places


def _peer_of(context: Any) -> Address | None:
    """A client's address, as a server shows it."""
    host, _, port = context.peer.rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdecimal() else None


class _Spans:
    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("aiordma", tracer_provider=tracer_provider)


class ClientSpans(_Spans):
    """An interceptor for clients: a span for each call, of kind ``CLIENT``.

    The span of a stream ends with the stream: with its last item, its failure, or its being closed.

    :param tracer_provider: None: the global one.
    """

    def _start(self, call: Any) -> Span:
        method = qualified(call.method)
        attributes = {
            "rpc.system.name": _SYSTEM,
            "rpc.method": method,
            **_address_attributes(call.server, call.peer),
        }
        span = self._tracer.start_span(method, kind=SpanKind.CLIENT, attributes=attributes)
        with trace.use_span(span):
            propagate.inject(call.metadata)
        return span

    async def unary(self, call: Any, proceed: Callable[[Any], Awaitable[Any]]) -> Any:
        span = self._start(call)
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                result = await proceed(call)
            except BaseException as exc:
                _failed_client(span, exc)
                raise
            finally:
                self._set_addresses(span, call)
            _set_code(span, _OK)
            return result

    def _set_addresses(self, span: Span, call: Any) -> None:
        """A pool picks the server after the span has begun."""
        for key, value in _address_attributes(call.server, call.peer).items():
            span.set_attribute(key, value)

    def stream(self, call: Any, proceed: Callable[[Any], Any]) -> Any:
        span = self._start(call)
        try:
            stream = _SpannedStream(proceed(call), span)
        except BaseException as exc:
            _failed_client(span, exc)
            span.end()
            raise
        self._set_addresses(span, call)
        return stream


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
                _failed_client(self._span, exc)
            else:
                _set_code(self._span, _OK)
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
    """An interceptor for servers: a span for each call, of kind ``SERVER``, below the client's span. It is an
    error only if the server itself has failed, which its code says (``UNKNOWN``, ``INTERNAL``,
    ``UNIMPLEMENTED`` and others).

    :param tracer_provider: None: the global one.
    """

    def _start(self, method: str, known: bool, context: Any) -> tuple[Span, Context]:
        """The span, and the context that came with the call."""
        try:
            metadata = {key: value for key, value in context.metadata.items() if isinstance(value, str)}
        except AioRdmaError:
            metadata = {}  # it is none, which is why the call fails
        parent = propagate.extract(metadata)
        attributes = {"rpc.system.name": _SYSTEM, **_address_attributes(None, _peer_of(context))}
        if known:
            attributes["rpc.method"] = name = qualified(method)
        else:
            attributes["rpc.method"], attributes["rpc.method_original"] = _OTHER, qualified(method)
            name = _SYSTEM
        span = self._tracer.start_span(name, context=parent, kind=SpanKind.SERVER, attributes=attributes)
        return span, parent

    @contextmanager
    def _around(self, call: Any) -> Iterator[None]:
        """The span of a handler, which is current in it, with everything that came with the call."""
        span, parent = self._start(call.method.name, True, call.context)
        token = contexts.attach(parent)
        try:
            # The handler's own task runs all of this, also a generator's steps from the first to the last.
            with trace.use_span(
                span, end_on_exit=True, record_exception=False, set_status_on_exception=False
            ):
                try:
                    yield
                except BaseException as exc:
                    _failed_server(span, exc, call.context)
                    raise
                _set_code(span, _OK)
        finally:
            contexts.detach(token)

    async def unary(self, call: Any, proceed: Callable[[Any], Awaitable[Any]]) -> Any:
        with self._around(call):
            return await proceed(call)

    async def stream(self, call: Any, proceed: Callable[[Any], Any]) -> AsyncIterator[Any]:
        with self._around(call):
            async with aclosing(proceed(call)) as items:
                async for item in items:
                    yield item

    def refused(self, call: Any, error: Any) -> None:
        """A call that no handler gets."""
        span, _ = self._start(call.method, call.known, call.context)
        _failed_server(span, error, call.context)
        span.end()
