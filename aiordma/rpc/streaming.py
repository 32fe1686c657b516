"""A streaming call as the client holds it."""

from __future__ import annotations

import math
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Self

from anyio import CancelScope, ClosedResourceError, EndOfStream

from ..errors import LocalProtocolError
from ..proto.rpc import BIDI, RpcMessage
from ..wake.interrupts import uninterrupted
from ..wake.threads import check_threads
from .codec import decode_result, encode_value
from .errors import Code, RpcError
from .into import ItemsInto
from .items import Inbox, Sending
from .reply import decoded_metadata, error_of

if TYPE_CHECKING:
    from types import TracebackType

    from ..proto.call import Call
    from ..wake.base import Waiter
    from .codec import Payload
    from .connection import Connection
    from .into import Allocator


@uninterrupted
class ClientStream:
    """Items in both directions, as far as the method has them; made by :meth:`Client.stream`.

    The call is made when the stream is entered (``async with``), or with the first operation::

        async with client.stream("kv.scan", b"prefix") as items:
            async for key, value in items:
                ...

        async with client.stream("log.append") as stream:
            for line in lines:
                await stream.send(line)
            count = await stream.result()

    Leaving the block, :meth:`aclose`, or dropping the last reference cancels the call if it has not ended;
    the server's handler is cancelled, too. One task may send while another one receives.
    """

    def __init__(  # noqa: PLR0913  # keywords of the user
        self,
        connection: Connection,
        method: str,
        encoding: int,
        payload: Payload,
        *,
        timeout: float | None,
        metadata: bytes | None,
        returns: Any,
        window: int = 0,
        into: Allocator | None = None,
    ) -> None:
        if window < 0:
            raise ValueError(f"window={window}: must be 0 or more bytes")
        self._connection = connection
        self._method = method
        self._request: tuple[int, Payload] | None = (encoding, payload)
        self._metadata = metadata
        self._returns = returns
        self._deadline = math.inf if timeout is None else connection.waker.now() + timeout
        self._call: Call | None = None
        #: while a task makes the call: of the others that need it
        self._others: list[Waiter] | None = None
        #: around that, where it has to wait
        self._scope: CancelScope | None = None
        self._inbox: Inbox | None = None
        self._sending: Sending | None = None
        self._owner = _Owner(connection, window)
        self._into: ItemsInto | None = None
        if into is not None:
            self._into = ItemsInto(f"an item of {method}", into)
            self._owner.place = self._into.place
            connection.place_messages()
        self._closed = False
        self._has_result = False
        self._thread = threading.get_ident()
        check_threads(self, connection.waker, "close")

    # ---- beginning and end

    async def start(self) -> None:
        """Make the call, unless that has been done: when this returns it is on its way. Where nothing was
        sent, because it failed or was cancelled before, the next operation tries again.

        :raises RpcError: it cannot be made, ``DEADLINE_EXCEEDED``.
        :raises anyio.ClosedResourceError: this stream is closed, perhaps meanwhile.
        """
        while self._call is None:
            if self._others is not None and not self._closed:  # another task is at it
                waiter = self._connection.waker.new_waiter()
                self._others.append(waiter)
                await waiter.wait()
            elif self._closed or self._request is None:
                raise ClosedResourceError("this stream is closed")
            else:
                await self._make_call(self._request)

    async def _make_call(self, request: tuple[int, Payload]) -> None:
        connection, owner, places = self._connection, self._owner, self._connection.in_flight
        self._request, self._others = None, []
        # So that close() ends the wait. (A scope costs about as much as a call that has none to do.)
        if places.available <= 0 or places.waiting or connection.unsent:
            self._scope = CancelScope()
        try:
            with self._scope or nullcontext():
                self._call = await connection.start(
                    owner, self._method, *request, self._deadline, self._metadata
                )
                self._inbox, self._sending = owner.inbox, owner.sending
        finally:
            for waiter in self._others:
                waiter.set()
            self._others = self._scope = None
            if self._call is None and not self._closed and not owner.was_sent:
                self._request = request
        if self._closed:
            self.close()  # what is there by now
            raise ClosedResourceError("this stream is closed")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        if self._into is not None:
            await self._into.withdraw(self._connection)

    def close(self) -> None:
        """End it: cancel the call if it has not ended, drop what was not taken. Idempotent."""
        self._closed = True
        self._request = None
        if self._scope is not None:
            self._scope.cancel()
        if self._call is not None:
            self._connection.cancel(self._call, Code.CANCELLED)
            if self._call.closed:
                self._call.owner = None  # each refers to the other
            if self._inbox is not None and self._sending is not None:
                self._inbox.drop(RpcError.of(Code.CANCELLED, f"{self._method}: the stream was closed"))
                self._sending.wake()
        if self._into is not None:
            self._into.withdraw_soon(self._connection)

    async def aclose(self) -> None:
        """As :meth:`close`. Nothing writes any more to memory that was named for items."""
        self.close()
        if self._into is not None:
            await self._into.withdraw(self._connection)
        await self._connection.waker.checkpoint()

    def __del__(self) -> None:
        # A loop was left without closing the stream: the handler must not go on without a client. (A garbage
        # collection in another thread must not touch the connection; there the deadline has to do it.)
        call = getattr(self, "_call", None)
        if call is not None and not call.closed and threading.get_ident() == self._thread:
            self._connection.cancel(call, Code.CANCELLED)

    # ---- receiving

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        item = await self._take()
        if item is None:
            self._must_be_items()
            raise StopAsyncIteration
        return self._item(*item)

    async def receive(self) -> Any:
        """The next item. Cancelled: none was taken.

        :raises anyio.EndOfStream: there are no more, and the call went well.
        :raises RpcError: the call failed; the items before that were received. Or the method answers with one
            value instead of items (``FAILED_PRECONDITION``): :meth:`result` has it.
        :raises anyio.ClosedResourceError: this stream is closed.
        """
        item = await self._take()
        if item is None:
            self._must_be_items()
            raise EndOfStream("the peer has finished sending, and everything was received")
        return self._item(*item)

    def _must_be_items(self) -> None:
        """The call went well, and there are no more items: a result means that there never were any."""
        encoding, payload = self._owner.result
        # (An empty bytes-like result looks like the end of a stream.)
        if not self._has_result and (encoding or len(payload)):
            raise RpcError(
                Code.FAILED_PRECONDITION,
                f"{self._method} answers with one value, not with a stream: use call() or result()",
            )

    def _item(self, encoding: int, payload: Payload) -> Any:
        if self._into is not None:
            return self._into.value(encoding, payload)
        return self._decoded(encoding, payload, "an item")

    async def _take(self) -> tuple[int, Payload] | None:
        if self._closed:
            raise ClosedResourceError("this stream is closed")
        if self._inbox is None:
            await self.start()
            assert self._inbox is not None
        return await self._inbox.take()

    async def result(self) -> Any:
        """Send no more, and wait for the one result of a method that takes a stream and gives one value.

        :raises RpcError: the call failed, or the method answers with a stream (``FAILED_PRECONDITION``).
        """
        await self.end()
        while True:
            item = await self._take()
            if item is None:
                break
            raise RpcError(Code.FAILED_PRECONDITION, f"{self._method} answers with a stream: iterate over it")
        self._has_result = True
        encoding, payload = self._owner.result
        return self._decoded(encoding, payload, "the result")

    def _decoded(self, encoding: int, payload: Payload, what: str) -> Any:
        most, keys = self._connection.most_objects, self._connection.most_keys
        return decode_result(encoding, payload, self._returns, f"{what} of {self._method}", most, keys)

    # ---- sending

    async def send(self, item: Any) -> None:
        """Send one item; waits while the server has no room for it. Cancelled: it may have been sent.

        :raises RpcError: the call has ended badly.
        :raises anyio.ClosedResourceError: it has ended well, or this end has ended its items.
        :raises TypeError: the item cannot travel.
        """
        if self._closed:
            raise ClosedResourceError("this stream is closed")
        encoding, payload = encode_value(item)
        if self._sending is None:
            await self.start()
            assert self._sending is not None
        try:
            await self._sending.send(encoding, payload)
        except LocalProtocolError:
            owner = self._owner
            if owner.finished and owner.error is not None:
                raise owner.error from None
            if self._closed:
                raise ClosedResourceError("this stream is closed") from None
            text = "the server has ended the call" if owner.finished else "end() was called"
            raise ClosedResourceError(f"{self._method}: {text}") from None

    async def end(self) -> None:
        """Announce that no more items will be sent; receiving continues. Idempotent."""
        await self.start()
        assert self._call is not None
        message = self._connection.machine.end(self._call)
        if message is not None:
            self._connection.send(message)
        await self._connection.waker.checkpoint()

    # ---- beside items

    @property
    def metadata(self) -> dict[str, str | bytes]:
        """The server's initial metadata; complete when the first item, or the end, has come."""
        return decoded_metadata(self._owner.raw_metadata)

    @property
    def trailing_metadata(self) -> dict[str, str | bytes]:
        """What the server sent with the end of the call."""
        return decoded_metadata(self._owner.raw_trailing)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "ended" if self._owner.finished else "open"
        return f"<ClientStream {self._method} to {self._connection.peer}: {state}>"


class _Owner:
    """What comes back for a stream. Apart from it, so that the stream itself is held by its user alone."""

    __slots__ = (
        "_connection",
        "call",
        "error",
        "finished",
        "inbox",
        "place",
        "raw_metadata",
        "raw_trailing",
        "result",
        "sending",
        "window",
    )

    kind = BIDI
    trace = None

    inbox: Inbox
    sending: Sending

    def __init__(self, connection: Connection, window: int) -> None:
        self._connection = connection
        self.window = window
        #: names memory for items (:class:`ItemsInto`); None: nothing does
        self.place: Any = None
        self.raw_metadata: bytes | None = None
        self.raw_trailing: bytes | None = None
        self.result: tuple[int, Payload] = (0, b"")
        self.error: RpcError | None = None
        self.finished = False
        self.call: Call | None = None

    def begin(self, call: Call) -> None:
        """The call is about to be sent."""
        connection, self.call = self._connection, call
        self.inbox = Inbox(connection, connection.machine, call)
        self.sending = Sending(connection, connection.machine, call)

    @property
    def was_sent(self) -> bool:
        """Whether a call that was begun and is not in flight was sent: then it was cancelled."""
        return self.call is not None and self.call.cancelled

    def on_item(self, encoding: int, payload: Payload) -> None:
        self.inbox.put(encoding, payload)

    def on_headers(self, metadata: bytes) -> None:
        self.raw_metadata = metadata

    def on_credit(self) -> None:
        self.sending.wake()

    def on_reply(self, message: RpcMessage) -> None:
        if message.metadata is not None:
            self.raw_metadata = message.metadata
        self.raw_trailing = message.trailing
        self.result = (message.encoding, message.payload)
        self.fail(error_of(message) if message.extra else None)

    def fail(self, error: RpcError | None) -> None:
        """The call is over."""
        if not self.finished:
            self.finished = True
            self.error = error
            self.inbox.finish(error)
            self.sending.wake()
