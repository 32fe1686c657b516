# cython: annotation_typing=False
"""A call with streams, while its handler runs: what arrives for it, and what the handler iterates over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from .counted import UNCOUNTED_BYTES, check_objects
from .errors import Code

if TYPE_CHECKING:
    from ..proto.call import Call
    from ..wake.base import Job
    from .codec import Payload
    from .errors import RpcError
    from .items import Inbox, Sending
    from .service import Method


class CallsConnection(Protocol):
    """What both need of the connection that the call came on."""

    most_objects: int
    most_keys: int

    def stop(self, call: Call, code: Code, /) -> None: ...
    def stopped(self, call: Call, /) -> RpcError: ...
    def hold(self, call: Call, earlier: int, objects: int, where: str, /) -> None: ...


class Handling:
    """A call with a stream, while its handler runs."""

    __slots__ = ("_connection", "call", "inbox", "job", "sending")

    def __init__(
        self, connection: CallsConnection, call: Call, inbox: Inbox | None, sending: Sending
    ) -> None:
        self._connection = connection
        self.call = call
        self.job: Job | None = None
        self.inbox = inbox
        self.sending = sending

    def cancel(self) -> None:
        if self.inbox is not None:
            self.inbox.drop(self._connection.stopped(self.call))
        if self.job is not None:
            self.job.cancel()

    def ended(self) -> None:
        """The handler takes no more items."""
        self.call.owner = None  # each refers to the other
        if self.inbox is not None:
            self.inbox.clear()

    def on_item(self, encoding: int, payload: Payload) -> None:
        if self.inbox is not None:
            self.inbox.put(encoding, payload)
            if self.call.ended:
                self.inbox.finish()
        elif self.call.stop == 0:
            self._connection.stop(self.call, Code.INVALID_ARGUMENT)

    def on_end(self) -> None:
        if self.inbox is not None:
            self.inbox.finish()

    def on_credit(self) -> None:
        self.sending.wake()


class Received:
    """The caller's items, as their handler iterates over them."""

    __slots__ = ("_call", "_connection", "_held", "_inbox", "_method")

    def __init__(self, inbox: Inbox, method: Method, call: Call, connection: CallsConnection) -> None:
        self._inbox = inbox
        self._method = method
        self._call = call
        self._connection = connection
        #: objects of the last item, if they were counted
        self._held = 0

    def __aiter__(self) -> Received:
        return self

    async def __anext__(self) -> Any:
        item = await self._inbox.take()
        if item is None:
            raise StopAsyncIteration
        encoding, payload = item
        if self._held or (encoding and len(payload) > UNCOUNTED_BYTES):
            self._hold(encoding, payload)
        return self._method.decode_item(encoding, payload)

    def _hold(self, encoding: int, payload: Payload) -> None:
        """Count the objects of an item; those of the one before are no longer the connection's."""
        connection, objects = self._connection, 0
        where = f"{self._method.name}: streamed item"
        if encoding and len(payload) > UNCOUNTED_BYTES:
            objects = check_objects(
                encoding,
                payload,
                connection.most_objects,
                connection.most_keys,
                self._method.item_keys,
                where,
            )
        connection.hold(self._call, self._held, objects, where)
        self._held = objects
