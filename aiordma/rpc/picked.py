"""One connection of a pool, as the pool's user gets it: its calls pass the pool's interceptors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..wake.close_watch import CloseCallbacks
from ..wake.threads import check_threads
from .client import Client
from .interceptor import chain_stream, chain_unary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .interceptor import ClientCall, ClientInterceptor


class Picked(Client):
    """Calls on the connection of ``client``, around which are ``interceptors``, too. The connection stays the
    pool's: it is not closed when this is dropped.
    """

    def __init__(self, client: Client, interceptors: Sequence[ClientInterceptor]) -> None:
        # Not as Client does it: the connection tells only one client of its end.
        self._client = client
        self.connection, self.addresses, self.origin = client.connection, client.addresses, client.origin
        self._call_raw, self._fallback_reason = client._call_raw, client._fallback_reason
        self._closed_waiters = client._closed_waiters
        self._close_callbacks = CloseCallbacks(client.connection.waker)
        client.add_close_callback(lambda _: self._close_callbacks.report(self))
        self._unary = chain_unary(interceptors, self._call)
        self._streams = chain_stream(interceptors, self._stream)
        check_threads(self, client.connection.waker, "abort", "stream")

    async def _call(self, call: ClientCall) -> Any:
        return await self._client.call(
            call.method,
            *call.args,
            timeout=call.timeout,
            metadata=call.metadata,
            returns=call.returns,
            idempotent=call.idempotent,
            into=call.into,
            **call.kwargs,
        )

    def _stream(self, call: ClientCall) -> Any:
        return stream_of(self._client, call)

    def __del__(self, _warn: Callable[..., None] | None = None) -> None:
        pass


def stream_of(client: Client, call: ClientCall) -> Any:
    """What the interceptors of streams have made of ``call``, on ``client``."""
    call.server, call.peer = client.addresses
    return client.stream(
        call.method,
        *call.args,
        timeout=call.timeout,
        metadata=call.metadata,
        returns=call.returns,
        window=call.window,
        into=call.into,
        **call.kwargs,
    )
