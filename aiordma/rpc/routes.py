# cython: annotation_typing=False
"""The methods of a server, prepared for being called: what does not depend on the call is worked out once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .interceptor import ServerCall, ServerInterceptor, as_async, chain_stream, chain_unary
from .service import Method
from .signature import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextvars import Context as Variables

    from ..wake.base import Starter


class Route:
    """One method."""

    def __init__(self, method: Method, interceptors: Sequence[ServerInterceptor]) -> None:
        self.method = method
        self.kind = method.kind
        self.handler = handler = method.handler
        self.is_async = is_async = method.is_async
        self.decode = method.decode
        #: names memory for a large argument; None: the method has no allocator
        self.place = method.place
        self.encode = method.encode_result
        self.context_index = method.signature.context_index
        self.stream_index = method.signature.stream_index
        self.takes_items = bool(method.kind & 2)
        #: what the arguments have as keys (``proto/objects.py``)
        self.keys = method.keys

        async def run(call: ServerCall) -> Any:
            result = handler(*call.args, **call.kwargs)
            return await result if is_async else result

        def iterate(call: ServerCall) -> Any:
            items = handler(*call.args, **call.kwargs)
            return items if is_async else as_async(items)

        #: through the interceptors to the handler; None: there are none
        self.unary: Any = chain_unary(interceptors, run)
        self.stream: Any = chain_stream(interceptors, iterate)
        if self.unary is run:
            self.unary = None
        if self.stream is iterate:
            self.stream = None


class Dispatch:
    """The methods of a server, and how their handlers are to be run: shared by its connections.

    :param expose_errors: send the exception of a failed handler to the client, with its traceback as details.
    """

    def __init__(
        self,
        methods: Iterable[Method],
        *,
        starter: Starter,
        variables: Variables,
        interceptors: Sequence[ServerInterceptor] = (),
        expose_errors: bool = False,
    ) -> None:
        self.routes = {method.name: Route(method, interceptors) for method in methods}
        #: some method has an allocator
        self.places = any(route.place is not None for route in self.routes.values())
        self.start = starter.start
        self.is_cancelled = starter.is_cancelled
        self.call = starter.call
        #: handlers run in copies of it
        self.variables = variables
        self.expose_errors = expose_errors
        #: of interceptors that want to know of calls that no handler gets
        self.refusals = [
            each.refused
            for each in interceptors
            if getattr(type(each), "refused", None) not in (None, ServerInterceptor.refused)
        ]


def wrong_kind(route: Route, kind: int) -> str:
    """Why a CALL of ``kind`` cannot be served by ``route``; empty when it can.

    A client that does not know the method's kind asks for both streams; what is not used stays empty.
    """
    if route.kind & 1 and not kind & 1:
        return f"answers with a stream ({Kind(route.kind).name}): call it with client.stream()"
    if route.kind & 2 and not kind & 2:
        return f"takes a stream ({Kind(route.kind).name}): call it with client.stream()"
    return ""
