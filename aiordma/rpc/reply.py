# cython: annotation_typing=False
"""What comes back for a unary call, as its connection hands it over: not decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import RemoteProtocolError
from ..observe.trace import recorder
from ..proto.metadata import decode_metadata
from ..proto.rpc import UNARY, RpcMessage
from ..proto.trace import Tracer
from .errors import Code, RpcError

if TYPE_CHECKING:
    from ..proto.call import Call
    from ..proto.trace import ClientTrace
    from ..wake.base import Waiter
    from .codec import Payload

# The recorder is asked by ``Tracer.begin(recorder, ...)``: compiled, that is a C function, and it need not
# look for what Recorder, a class in Python, might have overridden.

_NOTHING: Any = None


class Reply:
    """What came back: a unary call's result, not decoded."""

    kind = UNARY
    window = 0
    #: names memory for what comes back (:meth:`Connection._place`); None: nothing does
    place = _NOTHING

    def __init__(self) -> None:
        self.done = False
        self.error: RpcError | None = None
        self.encoding = 0
        self.payload: Payload = b""
        self.raw_metadata: bytes | None = None
        self.raw_trailing: bytes | None = None
        #: the record of its times, if they are wanted
        self.trace: ClientTrace | None = None
        self.waiter: Waiter | None = None

    @property
    def metadata(self) -> dict[str, str | bytes]:
        """Initial metadata.

        :raises RpcError: ``INTERNAL``, what the server sent is no metadata.
        """
        return decoded_metadata(self.raw_metadata)

    @property
    def trailing_metadata(self) -> dict[str, str | bytes]:
        """What came with the end of the call. Errors as of :attr:`metadata`."""
        return decoded_metadata(self.raw_trailing)

    def begin(self, call: Call) -> None:
        """Nothing: a unary call has no items."""

    def on_reply(self, message: RpcMessage) -> None:
        """The REPLY of this call."""
        self.done = True
        self.encoding = message.encoding
        self.payload = message.payload
        if message.metadata is not None:
            self.raw_metadata = message.metadata
        self.raw_trailing = message.trailing
        if self.trace is not None:
            Tracer.arrived(recorder, self.trace, message.trace)
        if message.extra:
            self.error = error_of(message)
        if self.waiter is not None:
            self.waiter.set()

    def fail(self, error: RpcError) -> None:
        """The call is over without a REPLY."""
        if not self.done:
            self.done = True
            self.error = error
            if self.waiter is not None:
                self.waiter.set()


def decoded_metadata(raw: bytes | None) -> dict[str, str | bytes]:
    """Metadata that a server sent."""
    try:
        return decode_metadata(raw) if raw else {}
    except RemoteProtocolError as exc:
        raise RpcError(Code.INTERNAL, str(exc)) from exc


def error_of(message: RpcMessage) -> RpcError:
    """The error that a REPLY carries."""
    try:
        trailing = decoded_metadata(message.trailing)
    except RpcError as error:
        return error
    return RpcError.of(Code.from_wire(message.extra), message.text, message.details, trailing)
