# cython: annotation_typing=False
"""The calls that this end makes, without I/O; their rules are in ``calls.py``.

Compiled as well (``client_calls.pxd``), on the rules of ``cursor.py``.
"""

from __future__ import annotations

from typing import Any

from .call import Call, MethodNumber
from .calls import ID_MASK, MAX_WINDOW, NOTHING, Calls
from .errors import LocalProtocolError, RemoteProtocolError
from .rpc import (
    CALL,
    CANCEL,
    CREDIT,
    END,
    FLAG_END,
    GOAWAY,
    HELLO,
    ITEM,
    MAX_NAME_BYTES,
    REPLY,
    Hello,
    call_head,
    cancel_message,
    end_message,
)


class ClientCalls(Calls):
    """The calls this end makes."""

    def __init__(self, hello: Hello) -> None:
        Calls.__init__(self, hello)
        self._methods: dict[str, MethodNumber] = {}
        #: calls that the GOAWAY just received has refused: the server never looked at them
        self.refused: list[Call] = []
        #: a GOAWAY has come; apart from `leaving`, as the owner may leave before the server does
        self.told = False

    def method(self, name: str) -> MethodNumber:
        """The number of a method's name.

        :raises ValueError: a name of more than 255 bytes, or an empty one.
        """
        found = self._methods.get(name)
        if found is None:
            raw = name.encode()
            if not 0 < len(raw) <= MAX_NAME_BYTES:
                raise ValueError(f"method name {name!r}: must be 1 to {MAX_NAME_BYTES} bytes in UTF-8")
            peer = self.peer
            if peer is not None and len(self._methods) >= peer.methods:
                return MethodNumber(0, raw)
            found = self._methods[name] = MethodNumber(len(self._methods) + 1, raw)
        return found

    def counts(self) -> list[tuple[str, int, int, int]]:
        """Of each method that has a number: name, calls, those without a result, and those in flight."""
        return self._count(list(self._methods.values()))

    def start(self, kind: int, owner: Any, window: int = 0) -> Call:
        """A new call, in flight from now on; ``head()`` is its message.

        :param window: bytes of reply items that may arrive before any are taken; 0: as in the HELLO.
        :raises LocalProtocolError: the server has not granted it, or takes no calls any more.
        """
        peer = self.peer
        if peer is None or len(self.calls) >= peer.calls or self.leaving:
            raise LocalProtocolError(
                "a call before the server's HELLO"
                if peer is None
                else "a call after GOAWAY"
                if self.leaving
                else f"more calls in flight than the {peer.calls} that the server allows"
            )
        serial = self.serial + 1
        while serial & ID_MASK == 0 or serial & ID_MASK in self.calls:
            serial += 1
        self.serial = serial
        call = Call(serial & ID_MASK, serial, kind, owner)
        if kind & 1:
            call.receive_limit = call.receive_window = min(window, MAX_WINDOW) or self.own.window
        else:
            call.headers = True
        if kind & 2:
            call.send_window = peer.window
        else:
            call.ended = True
        self.calls[call.id] = call
        return call

    def head(
        self,
        call: Call,
        method: MethodNumber,
        encoding: int,
        deadline_us: int = -1,
        metadata: bytes | None = None,
        trace: bytes | None = None,
    ) -> bytes:
        """The CALL up to its payload.

        :raises LocalProtocolError: more metadata than the server takes.
        """
        if metadata is not None and self.peer is not None and len(metadata) > self.peer.metadata:
            raise LocalProtocolError(
                f"{len(metadata)} bytes of metadata; the server takes {self.peer.metadata}"
            )
        name = None if method.told else method.name
        head = call_head(
            call.id,
            call.kind,
            encoding,
            method.number,
            name,
            deadline_us,
            call.receive_limit,
            metadata,
            trace,
        )
        method.calls += 1
        call.method = method
        return head

    def forget(self, call: Call) -> None:
        """The CALL was not sent and never will be."""
        call.closed = True
        if call.method is not None:
            call.method.calls -= 1
        self.calls.pop(call.id, None)

    def may_send(self, call: Call) -> bool:
        """Whether an item may be sent now; False when there is no credit.

        :raises LocalProtocolError: there is nothing to send any more.
        """
        if call.ended or call.cancelled or call.closed:
            raise LocalProtocolError(f"call {call.id}: its stream of items has ended")
        return self._may_send(call)

    def item(self, call: Call, encoding: int, size: int, last: bool = False) -> bytes:
        """The head of an item of ``size`` bytes; ``may_send()`` has returned True."""
        head = self._item(call, encoding, size, last)
        call.ended = last
        return head

    def end(self, call: Call) -> bytes | None:
        """No more items. None when that is known already or needs no telling."""
        if call.ended or call.cancelled or call.closed:
            return None
        call.ended = True
        return end_message(call.id)

    def cancel(self, call: Call, code: int) -> bytes | None:
        """Give the call up. None when there is nothing to send."""
        if call.cancelled or call.closed:
            return None
        call.cancelled = True
        if call.method is not None:
            call.method.errors += 1
        return cancel_message(call.id, code)

    def receive(self, data: bytes | memoryview) -> int:
        """A message arrived. Returns ``NOTHING``, ``HELLO``, ``REPLY``, ``HEADERS``, ``ITEM``, ``CREDIT``,
        ``GOAWAY``, ``PING`` or ``PONG``; ``call`` and ``message`` have the rest. A REPLY to a cancelled call
        is reported, too (``call.cancelled``): its credit is free again.

        :raises RemoteProtocolError: the peer broke the protocol; the connection must end.
        """
        message = self.message
        kind = message.parse(data)
        if kind == REPLY:
            # Checked before the call ends: if it ends the connection, the call is among the lost.
            if message.metadata is not None or message.trailing is not None:
                self._check_metadata()
            call = self.calls.pop(message.call_id, None)
            if call is None:
                raise RemoteProtocolError(f"a REPLY to call {message.call_id}, which is not in flight")
            call.closed = True
            if message.extra and call.method is not None and not call.cancelled:
                call.method.errors += 1
            self.call = call
            return REPLY
        self.call = None
        if self.peer is None or message.call_id == 0:
            return self._receive_for_connection(kind)
        if kind == CALL or kind == END or kind == CANCEL:
            raise RemoteProtocolError("a server sent what only clients send")
        call = self.calls.get(message.call_id)
        if call is None:
            raise RemoteProtocolError(f"a message for call {message.call_id}, which is not in flight")
        self.call = call
        self._receive_for_call(kind, call)
        return NOTHING if call.cancelled else kind

    def _receive_for_connection(self, kind: int) -> int:
        """A message that belongs to no call, or comes before any call can be made."""
        message = self.message
        if self.peer is None:
            if kind != HELLO:
                raise RemoteProtocolError("the server's first message is no HELLO")
            if message.hello is not None and message.hello.calls == 0:
                raise RemoteProtocolError("HELLO: the server allows no calls at all")
            return self._receive_hello()
        if kind == GOAWAY:
            return self._receive_goaway()
        if kind == HELLO:
            return self._receive_hello()
        return kind

    def _receive_for_call(self, kind: int, call: Call) -> None:
        if kind == CREDIT:
            if not call.kind & 2:
                raise RemoteProtocolError(f"call {call.id}: credit for items that it does not have")
            self._receive_credit(call)
        elif kind == ITEM:
            if not call.kind & 1 or self.message.flags & FLAG_END:
                raise RemoteProtocolError(f"call {call.id}: an item that it cannot have")
            call.headers = True
            self._receive_item(call)
        else:
            if call.headers:
                raise RemoteProtocolError(f"call {call.id}: HEADERS twice or too late")
            call.headers = True
            self._check_metadata()

    def _receive_goaway(self) -> int:
        if self.told:
            raise RemoteProtocolError("a second GOAWAY")
        accepted = self.message.number
        if accepted > self.serial:
            raise RemoteProtocolError(f"GOAWAY after call {accepted}, which was never made")
        self.told = self.leaving = True
        self.refused = [call for call in self.calls.values() if call.serial > accepted]
        for call in self.refused:
            call.closed = True
            if call.method is not None and not call.cancelled:
                call.method.errors += 1
            del self.calls[call.id]
        return GOAWAY
