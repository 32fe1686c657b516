"""What a program that makes calls holds: :class:`Client`, made by :func:`connect`."""

from __future__ import annotations

import math
import warnings
import weakref
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ..channels import channel as channels
from ..errors import LinkError, NegotiationError
from ..negotiation.block import block
from ..negotiation.options import config_of
from ..proto.clc import Kind
from ..proto.metadata import encode_metadata
from ..wake.close_watch import CloseCallbacks
from ..wake.ending import release_unclosed
from ..wake.interrupts import uninterrupted
from ..wake.origin import here
from ..wake.threads import check_threads
from .codec import decode_result, encode_arguments
from .connection import Connection
from .errors import RpcUnreachable
from .interceptor import ClientCall, chain_stream, chain_unary
from .into import call_into
from .items import check_window
from .streaming import ClientStream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping
    from ssl import SSLContext

    from ..addresses import Address
    from ..config import Config, Mode
    from ..credit import CreditWindow
    from ..errors import FallbackReason
    from .codec import Payload
    from .interceptor import ClientInterceptor
    from .into import Allocator

    Metadata = Mapping[str, str | bytes]

R = TypeVar("R")


@uninterrupted
class Client:
    """Calls to one server over one connection. Belongs to the event loop it was made in; any number of its
    tasks may make calls at the same time.

    :param interceptors: around every call, the first one outermost.
    :param server, remote_address: where the server is, for interceptors; None: not said.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        interceptors: Iterable[ClientInterceptor] = (),
        fallback_reason: FallbackReason | None = None,
        server: Address | None = None,
        remote_address: Address | None = None,
    ) -> None:
        self.connection = connection
        #: The server's host and port as they were given to connect, and the address that the connection has;
        #: None: it has none.
        self.addresses = server, remote_address
        self._call_raw = connection.call_raw
        self._fallback_reason = fallback_reason
        self._closed_waiters: list[Any] = []
        self._close_callbacks = CloseCallbacks(connection.waker)
        #: where it was created
        self.origin = here()
        # What is connected refers to its connection: that must not keep a client that everybody has dropped.
        on_end = weakref.WeakMethod(self._on_end)
        connection.on_end = lambda: _call(on_end())
        interceptors = list(interceptors)
        self._unary = chain_unary(interceptors, self._call) if interceptors else None
        self._streams = chain_stream(interceptors, self._stream) if interceptors else None
        check_threads(self, connection.waker, "abort", "stream")

    @overload
    async def call(
        self,
        method: str,
        /,
        *args: Any,
        returns: type[R],
        timeout: float | None = None,  # noqa: ASYNC109  # it travels with the call
        metadata: Metadata | None = None,
        idempotent: bool | None = None,
        into: None = None,
        **kwargs: Any,
    ) -> R: ...
    @overload
    async def call(
        self,
        method: str,
        /,
        *args: Any,
        returns: Any = None,
        timeout: float | None = None,  # noqa: ASYNC109  # it travels with the call
        metadata: Metadata | None = None,
        idempotent: bool | None = None,
        into: Any = None,
        **kwargs: Any,
    ) -> Any: ...
    async def call(
        self,
        method: str,
        /,
        *args: Any,
        timeout: float | None = None,  # noqa: ASYNC109  # it travels with the call
        metadata: Metadata | None = None,
        returns: Any = None,
        idempotent: bool | None = None,
        into: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Call a method that has one result, and wait for it.

        Cancelled: the handler is cancelled, too, and its reply is dropped; other calls are not concerned.

        :param method: ``"service.method"``.
        :param args: its arguments. One bytes-like argument alone is sent as it is; everything else as
            MessagePack.
        :param timeout: seconds until the call fails with ``DEADLINE_EXCEEDED``; the handler is cancelled.
        :param metadata: for the handler; keys are printable ASCII in lower case, values ``str`` or ``bytes``.
        :param returns: type of the result, checked, and what type checkers take it for. None: whatever comes;
            ``memoryview``: a large bytes-like result is not copied.
        :param idempotent: whether the call may be repeated (see :class:`~aiordma.rpc.Retry`).
        :param into: memory for the result, which is bytes-like or an array: a writable buffer (a bytearray, a
            memoryview, an array) or a region of ``aiordma.memory``. The result is received there, and what
            this returns is a writable view of it; ``returns`` has no part in it. An array must have the type
            and the shape of the result, unless it is one-dimensional and of bytes. When the call has ended,
            whatever way, the memory is the caller's again.
        :param kwargs: arguments by keyword.
        :raises BufferError: ``into`` is read-only, or does not lie in one piece.
        :raises RpcError: the call failed; its ``code`` says why. ``RpcTimeout`` is a ``TimeoutError``, too.
        :raises TypeError: an argument cannot travel.
        """
        if self._unary is not None:
            sent = dict(metadata or ())
            call = ClientCall(method, args, kwargs, timeout, sent, returns, idempotent, into, *self.addresses)
            return await self._unary(call)
        encoding, payload = encode_arguments(args, kwargs)
        raw = encode_metadata(metadata) if metadata else None
        if into is not None:
            _check_call(method, timeout)
            return await call_into(self.connection, method, encoding, payload, timeout, raw, into)
        try:
            reply = await self._call_raw(method, encoding, payload, timeout, raw)
        except (TypeError, AttributeError, ValueError):
            _check_call(method, timeout)  # here, so that a call that is right pays nothing
            raise
        result, reply.payload = reply.payload, b""  # the connection remembers the last reply
        return self._decoded(reply.encoding, result, returns, method)

    async def _call(self, call: ClientCall) -> Any:
        """What the interceptors of unary calls end with."""
        encoding, payload = encode_arguments(call.args, call.kwargs)
        raw = encode_metadata(call.metadata) if call.metadata else None
        _check_call(call.method, call.timeout)
        if call.into is not None:
            return await call_into(
                self.connection, call.method, encoding, payload, call.timeout, raw, call.into
            )
        reply = await self._call_raw(call.method, encoding, payload, call.timeout, raw)
        result, reply.payload = reply.payload, b""
        return self._decoded(reply.encoding, result, call.returns, call.method)

    def _decoded(self, encoding: int, payload: Payload, returns: Any, where: str) -> Any:
        connection = self.connection
        return decode_result(encoding, payload, returns, where, connection.most_objects, connection.most_keys)

    def stream(
        self,
        method: str,
        /,
        *args: Any,
        timeout: float | None = None,
        metadata: Metadata | None = None,
        returns: Any = None,
        window: int = 0,
        into: Allocator | None = None,
        **kwargs: Any,
    ) -> ClientStream:
        """Call a method that takes a stream of items, or answers with one. Parameters as of :meth:`call`.

        :param returns: type of each item (of the result, where that is one value).
        :param window: bytes of items that the server may send before any of them are taken; 0: the default
            of the connection. (An item costs 64 bytes beside its own.)
        :param into: names memory for each item, which is bytes-like or an array: a function that is given an
            :class:`Incoming` and returns what ``into`` of :meth:`call` may be. Items are received there,
            before they are taken. Leaving the block, or :meth:`ClientStream.aclose`, ends that.
        :raises TypeError: an argument cannot travel. :raises ValueError: ``window`` is negative.
        """
        if self._streams is not None:
            sent = dict(metadata or ())
            server, peer = self.addresses
            call = ClientCall(method, args, kwargs, timeout, sent, returns, None, into, server, peer, window)
            return self._streams(call)  # type: ignore[no-any-return]
        return self._make_stream(method, args, kwargs, timeout, metadata, returns, window, into)

    def _stream(self, call: ClientCall) -> ClientStream:
        """What the interceptors of streams end with."""
        return self._make_stream(
            call.method,
            call.args,
            call.kwargs,
            call.timeout,
            call.metadata,
            call.returns,
            call.window,
            call.into,
        )

    def _make_stream(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: float | None,
        metadata: Metadata | None,
        returns: Any,
        window: int,
        into: Allocator | None,
    ) -> ClientStream:
        _check_call(method, timeout)
        encoding, payload = encode_arguments(args, kwargs)
        raw = encode_metadata(metadata) if metadata else None
        return ClientStream(
            self.connection,
            method,
            encoding,
            payload,
            timeout=timeout,
            metadata=raw,
            returns=returns,
            window=window,
            into=into,
        )

    async def ping(self, timeout: float | None = None) -> float:  # noqa: ASYNC109
        """Seconds until the server's event loop has answered.

        :raises RpcError: ``UNAVAILABLE``, ``DEADLINE_EXCEEDED``.
        """
        return (await self.connection.ping(timeout))[0]

    @property
    def usable(self) -> bool:
        """Whether calls can be made: the connection is there, and the server is not shutting down."""
        return self.connection.usable

    @property
    def in_flight(self) -> CreditWindow:
        """The calls that may be in flight, as granted by the server; calls beyond it wait their turn."""
        return self.connection.in_flight

    @property
    def path(self) -> str:
        """``"rdma"`` or ``"tcp"``."""
        return self.connection.channel.path

    @property
    def fallback_reason(self) -> FallbackReason | None:
        """Why the connection runs on TCP; None on the RDMA path."""
        return self._fallback_reason

    @property
    def peer(self) -> str:
        """The server's address."""
        return self.connection.peer

    async def wait_closed(self) -> BaseException | None:
        """Wait until no more calls can be made; why: None when the server is shutting down in order."""
        connection = self.connection
        while connection.usable:
            waiter = connection.waker.new_waiter()
            self._closed_waiters.append(waiter)
            try:
                await waiter.wait()
            finally:
                self._closed_waiters.remove(waiter)
        return connection.ended if not connection.leaving else None

    def _on_end(self) -> None:
        for waiter in self._closed_waiters:
            waiter.set()
        if self.closed:
            self._close_callbacks.report(self)

    @property
    def closed(self) -> bool:
        """Whether the connection is over: closed or aborted by this end, closed by the server, or lost."""
        return self.connection.ended is not None

    def add_close_callback(self, callback: Callable[[Client], object]) -> None:
        """Have the event loop call ``callback(client)`` once when the client is :attr:`closed`; soon, if it
        is already. Not called when the event loop ends first."""
        self._close_callbacks.add(callback)
        if self.closed:
            self._close_callbacks.report(self)

    def remove_close_callback(self, callback: Callable[[Client], object]) -> int:
        """Do not call it; how often it was there (0: never, or it was called)."""
        return self._close_callbacks.remove(callback)

    def abort(self) -> None:
        """Drop the connection now: the server gets an error, calls in flight fail with ``UNAVAILABLE``.

        Waits for nothing, so any callback of the event loop may call it. Idempotent.
        """
        self.connection.abort(LinkError("aborted by this end", self.peer))

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        connection = getattr(self, "connection", None)
        if connection is not None and connection.ended is None:
            release_unclosed(self, connection.waker, connection.close, _warn)

    async def aclose(self, timeout: float | None = 0.0) -> None:  # noqa: ASYNC109
        """Close the connection. Idempotent. A client that is dropped without that gives a
        ``ResourceWarning``, and its connection is closed.

        :param timeout: seconds for which calls in flight may go on (None: until they end); then they fail
            with ``UNAVAILABLE``, and their handlers are cancelled.
        """
        await self.connection.aclose(timeout)

    def __repr__(self) -> str:
        state = "usable" if self.usable else "closed"
        return f"<Client of {self.peer} on {self.path}: {self.connection.calls} in flight, {state}>"


def _check_call(method: object, timeout: object) -> None:
    """Name what is wrong with a call. :raises TypeError, ValueError:"""
    if not isinstance(method, str):
        raise TypeError(f"method={method!r:.64}: must be the name of a method, such as 'service.method'")
    if timeout is None:
        return
    if not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout={timeout!r:.64}: must be a number of seconds, or None for no limit")
    if math.isnan(timeout):
        raise ValueError("timeout=nan: must be a number of seconds, or None for no limit")


def _call(method: Callable[[], None] | None) -> None:
    if method is not None:
        method()


# long: the keywords of the user, and what they mean
@block
async def connect(  # noqa: PLR0913  # keywords of the user
    host: str,
    port: int,
    *,
    interceptors: Iterable[ClientInterceptor] = (),
    window: int = 262144,
    config: Config | None = None,
    mode: Mode | None = None,
    ssl: SSLContext | bool | None = None,
    server_hostname: str | None = None,
    rdma_outside_tls: bool = False,
) -> AsyncIterator[Client]:
    """Connect to a server of calls: ``async with rpc.connect(host, port) as client: ...``

    At the end of the block the connection is closed; calls in flight fail with ``UNAVAILABLE``.

    :param interceptors: around every call, the first one outermost.
    :param window: bytes of items that the server may send on a stream before any of them are taken.
    :param config: settings; None: from the environment.
    :param mode: ``"auto"``: RDMA, or TCP where RDMA is not available; ``"rdma"``: fail instead; ``"tcp"``.
    :param ssl, server_hostname, rdma_outside_tls: TLS as in :func:`aiordma.connect`.
    :raises RpcError: ``UNAVAILABLE``: the server cannot be reached (:class:`RpcUnreachable`, which is a
        ``ConnectionError``, too), or no HELLO came.
    :raises aiordma.NegotiationError: (a ``ConnectionError``, too) the server is not one for calls; or RDMA is
        demanded and cannot be used.
    :raises ValueError: ``window`` is below 1, or above 1 GiB.
    """
    config = config_of(config)
    check_window(window)
    try:
        connected = await channels.connect(
            host,
            port,
            kind=Kind.CALLS,
            config=config,
            mode=mode,
            ssl=ssl,
            server_hostname=server_hostname,
            rdma_outside_tls=rdma_outside_tls,
        )
    except NegotiationError:
        raise  # it says more than "unavailable"
    except OSError as error:
        raise RpcUnreachable(error.strerror or str(error), error.errno) from error
    connection = await Connection.open(
        connected.detach(), f"{host}:{port}", timeout=config.negotiate_timeout_ms / 1000, window=window
    )
    connection.most_objects = config.max_message_objects
    connection.most_keys = config.max_message_keys
    try:
        # Kept here: a client that is dropped closes its connection.
        client = Client(
            connection,
            interceptors=interceptors,
            fallback_reason=connected.fallback_reason,
            server=(host, port),
            remote_address=connected.remote_address,
        )
        yield client
    finally:
        connection.close()
