"""Interceptors: what is to happen around every call, on either side, without touching handlers or callers.

The two sides have the same shape. An interceptor gets the call and ``proceed``, which goes on to the next
interceptor and at last makes the call (client) or runs the handler (server)::

    class Timing(rpc.ServerInterceptor):
        others_pass = True  # streams are not measured

        async def unary(self, call, proceed):
            begin = time.perf_counter()
            try:
                return await proceed(call)
            finally:
                observe(call.method.name, time.perf_counter() - begin)

It may change the call, answer without proceeding, proceed more than once (retries), or raise an
:class:`RpcError`. The first interceptor of a list is the outermost. A side without interceptors pays nothing,
and an interceptor that leaves ``stream`` as it is costs streams nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    from ..addresses import Address
    from .service import Method

Call = TypeVar("Call")

UnaryProceed = Callable[[Call], Awaitable[Any]]
StreamProceed = Callable[[Call], Any]


@dataclass(slots=True)
class ClientCall:
    """A call as a client's interceptors see it. Everything may be changed before proceeding."""

    #: Name of the method, ``"kv.get"``.
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    #: Seconds that are left when the call is made; None: no limit.
    timeout: float | None = None
    #: Metadata to be sent with the call.
    metadata: dict[str, str | bytes] = field(default_factory=dict)
    #: Type of the result or of each item; None: whatever comes.
    returns: Any = None
    #: Whether it may be repeated; None: the caller did not specify it.
    idempotent: bool | None = None
    #: Memory for the result; None: none is named.
    into: Any = None
    #: Host and port of the server, as they were given to connect; None: not known, or (with a pool) not yet.
    server: Address | None = None
    #: Address of the connection's other end; None: as for :attr:`server`.
    peer: Address | None = None
    #: Of a stream: bytes of items that may come before any are taken; 0: the connection's default.
    window: int = 0


@dataclass(slots=True)
class ServerCall:
    """A call as a server's interceptors see it."""

    method: Method
    #: The call's context: deadline, metadata, peer.
    context: Any
    #: Positional arguments of the handler, checked; the caller's stream of items and the context are in their
    #: places already.
    args: list[Any]
    kwargs: dict[str, Any]


@dataclass(slots=True)
class RefusedCall:
    """A call that no handler gets, as :meth:`ServerInterceptor.refused` sees it."""

    #: Name of the method, as the client sent it.
    method: str
    #: Whether the server has a method of this name.
    known: bool
    #: The call's context: metadata, peer.
    context: Any


class _Interceptor(Generic[Call]):
    async def unary(self, call: Call, proceed: UnaryProceed[Call]) -> Any:
        """Around a call that has one result (unary, client-streaming). Returns the result."""
        return await proceed(call)

    def stream(self, call: Call, proceed: StreamProceed[Call]) -> Any:
        """Around a call that has a stream of results (server-streaming, bidirectional).

        Not a coroutine. On a server it returns an asynchronous iterator of the items, and is most easily
        written as a generator (``async for item in proceed(call): yield item``). On a client it returns
        the stream object that ``proceed`` returned, or one that behaves like it.
        """
        return proceed(call)


class ClientInterceptor(_Interceptor[ClientCall]):
    """Around the calls that a client makes. On a client, client-streaming calls are streams, too."""


class ServerInterceptor(_Interceptor[ServerCall]):
    """Around the handlers of a server. With it every handler runs in a task, ``def`` handlers, too.

    One that overrides only one of ``unary`` and ``stream`` is refused with a ``TypeError`` when the server is
    made: a guard of one kind of method would leave the other kind open. Where that is meant, the class says
    so with :attr:`others_pass`.
    """

    #: True: calls of the kind that this class does not override pass by it. Subclasses that override
    #: ``unary`` or ``stream`` themselves do not inherit it.
    others_pass: ClassVar[bool] = False

    def refused(self, call: RefusedCall, error: Any) -> None:
        """No handler gets the call, which so comes neither to :meth:`unary` nor to :meth:`stream`: its method
        does not exist or is of another kind, its arguments are wrong, or it was cancelled before its handler
        began. For logs and counts: the call ends with ``error``, an :class:`RpcError`.
        """


def whole(interceptors: Iterable[ServerInterceptor]) -> list[ServerInterceptor]:
    """The interceptors of a server.

    :raises TypeError: one overrides only one kind of method, and does not say that the others pass.
    """
    interceptors = list(interceptors)
    for interceptor in interceptors:
        of = type(interceptor)
        unary = of.unary is not _Interceptor.unary
        if unary != (of.stream is not _Interceptor.stream) and not _others_pass(of):
            this, other = ("unary", "stream") if unary else ("stream", "unary")
            raise TypeError(
                f"{of.__qualname__} overrides {this}() but not {other}(), whose calls would pass by it: "
                f"override {other}(), too, or set others_pass = True in the class if that is meant"
            )
    return interceptors


def _others_pass(of: type) -> bool:
    """What the class that overrides says, or one made from it: what it says itself, not what it inherits."""
    for each in of.__mro__:
        names = vars(each)
        if "others_pass" in names:
            return bool(names["others_pass"])
        if "unary" in names or "stream" in names:
            break
    return False


def chain_unary(interceptors: Iterable[_Interceptor[Call]], last: UnaryProceed[Call]) -> UnaryProceed[Call]:
    """One function that goes through the ``unary`` of all ``interceptors`` and ends with ``last``."""
    for interceptor in reversed(list(interceptors)):
        if type(interceptor).unary is not _Interceptor.unary:
            last = _unary_link(interceptor, last)
    return last


def chain_stream(
    interceptors: Iterable[_Interceptor[Call]], last: StreamProceed[Call]
) -> StreamProceed[Call]:
    """The same for ``stream``."""
    for interceptor in reversed(list(interceptors)):
        if type(interceptor).stream is not _Interceptor.stream:
            last = _stream_link(interceptor, last)
    return last


def _unary_link(interceptor: _Interceptor[Call], following: UnaryProceed[Call]) -> UnaryProceed[Call]:
    def proceed(call: Call) -> Awaitable[Any]:
        return interceptor.unary(call, following)

    return proceed


def _stream_link(interceptor: _Interceptor[Call], following: StreamProceed[Call]) -> StreamProceed[Call]:
    def proceed(call: Call) -> Any:
        return interceptor.stream(call, following)

    return proceed


async def as_async(items: Iterable[Any]) -> AsyncIterator[Any]:
    """The items of a plain generator handler, for a chain of interceptors (which are asynchronous)."""
    for item in items:
        yield item
