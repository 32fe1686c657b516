"""What a handler can read and set of the call it handles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from ..errors import RemoteProtocolError
from ..proto.metadata import decode_metadata, encode_metadata
from .errors import Code, RpcError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..pipes.contracts import Channel
    from ..proto.call import Call
    from ..proto.server_calls import ServerCalls
    from ..wake.base import Waker


class CallConnection(Protocol):
    """What a context needs of the connection that the call came on."""

    machine: ServerCalls

    @property
    def peer(self) -> str: ...
    @property
    def channel(self) -> Channel: ...
    @property
    def waker(self) -> Waker: ...


class Context:
    """The call that a handler handles; a handler gets it by a parameter annotated ``rpc.Context``."""

    #: How the registration of handlers recognises the parameter.
    __rpc_context__ = True

    __slots__ = ("_call", "_connection", "_headers", "_raw", "_trailing", "method")

    def __init__(self, connection: CallConnection, call: Call, method: str, metadata: bytes | None) -> None:
        self._connection = connection
        self._call = call
        self._raw = metadata
        self._headers: bytes | None = None
        self._trailing: bytes | None = None
        #: name of the method, ``"kv.get"``
        self.method = method

    @property
    def metadata(self) -> dict[str, str | bytes]:
        """What the client sent along.

        :raises RpcError: ``INVALID_ARGUMENT``, it is no metadata.
        """
        try:
            return decode_metadata(self._raw) if self._raw else {}
        except RemoteProtocolError as exc:
            raise RpcError(Code.INVALID_ARGUMENT, str(exc)) from exc

    @property
    def peer(self) -> str:
        """The client's address."""
        return self._connection.peer

    @property
    def path(self) -> str:
        """``"rdma"`` or ``"tcp"``."""
        return self._connection.channel.path

    @property
    def deadline(self) -> float:
        """When the time of the call is over, on the event loop's clock (``anyio.current_time()``); infinity
        when the client did not limit it. The handler is cancelled then."""
        return self._call.deadline

    @property
    def time_left(self) -> float:
        """Seconds until the deadline (infinity: no limit); 0 when it has passed."""
        if self._call.deadline == math.inf:
            return math.inf
        return max(0.0, self._call.deadline - self._connection.waker.now())

    @property
    def cancelled(self) -> bool:
        """Whether the result is not needed any more: the client has cancelled, the deadline has passed, or
        the connection is lost."""
        return self._call.cancelled or self._call.closed or self._call.stop != 0

    @property
    def stop_code(self) -> Code | None:
        """Why the handler is cancelled: ``CANCELLED`` by the client, or because the connection is lost,
        ``DEADLINE_EXCEEDED``, ``UNAVAILABLE``: the server shuts down. None: it is not."""
        return Code(self._call.stop) if self._call.stop else None

    def set_metadata(self, metadata: Mapping[str, str | bytes]) -> None:
        """Send this along with the first item or with the result.

        :raises ValueError, TypeError: see ``docs/reference/rpc.md``: keys are printable ASCII in lower case,
            values ``str`` or ``bytes``.
        """
        self._headers = self._encoded(metadata, self._trailing)

    def set_trailing_metadata(self, metadata: Mapping[str, str | bytes]) -> None:
        """Send this along with the end of the call, good or bad. Errors as in :meth:`set_metadata`."""
        self._trailing = self._encoded(metadata, self._headers)

    def _encoded(self, metadata: Mapping[str, str | bytes], other: bytes | None) -> bytes:
        raw = encode_metadata(metadata)
        peer = self._connection.machine.peer
        size = len(raw) + len(other or b"")
        if peer is not None and size > peer.metadata:
            raise ValueError(f"{size} bytes of metadata; the client takes {peer.metadata}")
        return raw

    def take_headers(self) -> bytes | None:
        """The initial metadata, once."""
        headers, self._headers = self._headers, None
        return headers

    @property
    def trailing(self) -> bytes | None:
        """The trailing metadata, encoded."""
        return self._trailing

    def __repr__(self) -> str:
        return f"<Context {self.method} from {self.peer}>"
