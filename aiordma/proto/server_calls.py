# cython: annotation_typing=False
"""The calls that the peer makes, without I/O; their rules are in ``calls.py``.

Compiled as well (``server_calls.pxd``), on the rules of ``cursor.py``.
"""

from __future__ import annotations

from typing import Any

from .call import Call, MethodNumber
from .calls import ID_MASK, MAX_WINDOW, NOTHING, Calls
from .errors import LocalProtocolError, RemoteProtocolError
from .rpc import (
    CALL,
    CANCEL,
    END,
    FLAG_END,
    GOAWAY,
    HEADERS,
    HELLO,
    ITEM,
    MAX_DETAILS_BYTES,
    REPLY,
    Hello,
    error_message,
    goaway_message,
    headers_message,
    reply_head,
)


class ServerCalls(Calls):
    """The calls the peer makes."""

    def __init__(self, hello: Hello) -> None:
        Calls.__init__(self, hello)
        #: what the owner has bound to the numbers of methods
        self._targets: list[object] = [None]
        self._names: list[str] = [""]
        #: counts of the same numbers; of 0: those that the client has no number for
        self._methods = [MethodNumber(0, b"")]
        #: serial of the last call that came; `serial` is that of the last one before our GOAWAY
        self.seen = 0
        #: objects of all calls in flight: the sum of ``Call.objects``
        self.objects = 0
        #: CALL: what is bound to its method; None: ``message.name`` is to be looked up, then ``bind()``
        self.target: Any = None

    def counts(self) -> list[tuple[str, int, int, int]]:
        """Of each method: name (empty: those without a number), calls, those without a result, in flight."""
        return self._count(self._methods)

    def bind(self, target: object) -> None:
        """Let the CALL just received, and all later ones with its number, be for ``target``."""
        if self.message.method:
            self._targets[self.message.method] = target

    def bound(self, number: int) -> Any:
        """What is bound to a method's number; None: nothing yet."""
        return self._targets[number] if 0 < number < len(self._targets) else None

    def receive(self, data: bytes | memoryview) -> int:
        """A message arrived. Returns ``NOTHING``, ``HELLO``, ``CALL``, ``ITEM``, ``END``, ``CREDIT``,
        ``CANCEL``, ``PING`` or ``PONG``. An ITEM that is the last one has ``call.ended`` set.

        :raises RemoteProtocolError: the peer broke the protocol; the connection must end.
        """
        message = self.message
        kind = message.parse(data)
        self.call = None
        if kind == CALL:
            return self._receive_call()
        if self.peer is None or message.call_id == 0:
            return self._receive_for_connection(kind)
        if kind == REPLY or kind == HEADERS:
            raise RemoteProtocolError("a client sent what only servers send")
        call = self.calls.get(message.call_id)
        if call is None:
            # Replied to already, or refused by our GOAWAY; but not one that never was.
            if (self.seen - message.call_id) & ID_MASK >= 0x80000000 or not self.seen:
                raise RemoteProtocolError(f"a message for call {message.call_id}, which never was")
            return NOTHING
        self.call = call
        self._receive_for_call(kind, call)
        return kind

    def _receive_for_connection(self, kind: int) -> int:
        """A message that belongs to no call, or comes before the HELLO."""
        if kind == HELLO:
            return self._receive_hello()
        if self.peer is None:
            raise RemoteProtocolError("the client's first message is no HELLO")
        if kind == GOAWAY:
            raise RemoteProtocolError("a client sent what only servers send")
        return kind

    def _receive_for_call(self, kind: int, call: Call) -> None:
        if call.cancelled:
            raise RemoteProtocolError(f"call {call.id}: a message after CANCEL")
        if kind == ITEM:
            if call.ended:
                raise RemoteProtocolError(f"call {call.id}: an item that it cannot have")
            self._receive_item(call)
            call.ended = self.message.flags & FLAG_END != 0
        elif kind == END:
            if call.ended:
                raise RemoteProtocolError(f"call {call.id}: END of what has ended")
            call.ended = True
        elif kind == CANCEL:
            call.cancelled = True
        else:
            if not call.kind & 1:
                raise RemoteProtocolError(f"call {call.id}: credit for items that it does not have")
            self._receive_credit(call)

    def _receive_call(self) -> int:
        message = self.message
        if self.peer is None:
            raise RemoteProtocolError("the client's first message is no HELLO")
        step = (message.call_id - self.seen) & ID_MASK
        if step == 0 or step >= 0x80000000:
            raise RemoteProtocolError(f"call {message.call_id} after call {self.seen & ID_MASK}")
        self.seen += step
        if self.leaving:
            return NOTHING
        self.serial = self.seen
        if len(self.calls) >= self.own.calls:
            raise RemoteProtocolError(f"more calls in flight than the {self.own.calls} that are allowed")
        if message.call_id in self.calls:
            raise RemoteProtocolError(f"call {message.call_id} is in flight already")
        if message.metadata is not None:
            self._check_metadata()
        self._find_target()
        call = Call(message.call_id, self.serial, message.extra, None)
        if call.kind & 1:
            if not 1 <= message.window <= MAX_WINDOW:
                raise RemoteProtocolError(f"CALL: a window of {message.window} bytes")
            call.send_window = message.window
        if call.kind & 2:
            call.receive_limit = call.receive_window = self.own.window
        else:
            call.ended = True
        call.method = self._methods[message.method]
        call.method.calls += 1
        self.calls[call.id] = call
        self.call = call
        return CALL

    def _find_target(self) -> None:
        message = self.message
        number = message.method
        name = message.name
        if name is None:
            if not 0 < number < len(self._targets) or not self._names[number]:
                raise RemoteProtocolError(f"CALL: method number {number} was never given a name")
            self.target = self._targets[number]
            if self.target is None:
                message.name = self._names[number]
        elif number == 0:
            self.target = None
        else:
            if number > self.own.methods:
                raise RemoteProtocolError(f"CALL: more than {self.own.methods} method numbers")
            # A call that was to introduce a name may have been withdrawn before it left: there may be gaps.
            while number >= len(self._targets):
                self._targets.append(None)
                self._names.append("")
                self._methods.append(MethodNumber(len(self._methods), b""))
            if not self._names[number]:
                self._names[number] = name
                self._methods[number].name = name.encode()
            elif self._names[number] != name:
                raise RemoteProtocolError(f"CALL: method number {number} for {name!r} is taken")
            self.target = self._targets[number]

    def reply(
        self,
        call: Call,
        encoding: int,
        metadata: bytes | None = None,
        trailing: bytes | None = None,
        trace: bytes | None = None,
    ) -> bytes:
        """The call ends well: the REPLY up to its payload.

        :raises LocalProtocolError: it has ended already; more metadata than the client takes. Then the call
            has not ended.
        """
        if metadata is not None or trailing is not None:
            self._check_sent(metadata, trailing)
        head = reply_head(call.id, encoding, metadata, trailing, trace)
        self._close(call)
        return head

    def fail(
        self,
        call: Call,
        code: int,
        text: str,
        details: bytes | None = None,
        metadata: bytes | None = None,
        trailing: bytes | None = None,
        trace: bytes | None = None,
    ) -> bytes:
        """The call fails: the whole REPLY.

        :raises LocalProtocolError: it has ended already; the code is 0; more metadata, or longer details,
            than the client takes. Then, and with values of other types, the call has not ended.
        """
        if not 1 <= code <= 255:
            raise LocalProtocolError(f"code {code} is no error")
        if details is not None and len(details) > MAX_DETAILS_BYTES:
            raise LocalProtocolError(f"details of {len(details)} bytes; {MAX_DETAILS_BYTES} are allowed")
        if metadata is not None or trailing is not None:
            self._check_sent(metadata, trailing)
        message = error_message(call.id, code, text, details, metadata, trailing, trace)
        self._close(call)
        if call.method is not None:
            call.method.errors += 1
        return message

    def _check_sent(self, metadata: bytes | None, trailing: bytes | None) -> None:
        size = len(metadata or b"") + len(trailing or b"")
        if self.peer is not None and size > self.peer.metadata:
            raise LocalProtocolError(f"{size} bytes of metadata; the client takes {self.peer.metadata}")

    def _close(self, call: Call) -> None:
        if call.closed:
            raise LocalProtocolError(f"call {call.id} has been replied to already")
        call.closed = True
        self.objects -= call.objects
        del self.calls[call.id]

    def headers(self, call: Call, metadata: bytes) -> bytes:
        """Initial metadata, before the first item.

        :raises LocalProtocolError: too late, or more than the client takes.
        """
        if call.headers or call.closed or not call.kind & 1:
            raise LocalProtocolError(f"call {call.id}: initial metadata was sent, or cannot be sent any more")
        if self.peer is not None and len(metadata) > self.peer.metadata:
            raise LocalProtocolError(
                f"{len(metadata)} bytes of metadata; the client takes {self.peer.metadata}"
            )
        call.headers = True
        return headers_message(call.id, metadata)

    def may_send(self, call: Call) -> bool:
        """Whether an item may be sent now; False when there is no credit.

        :raises LocalProtocolError: the call has been replied to.
        """
        if call.closed:
            raise LocalProtocolError(f"call {call.id} has been replied to already")
        return self._may_send(call)

    def item(self, call: Call, encoding: int, size: int) -> bytes:
        """The head of an item of ``size`` bytes; ``may_send()`` has returned True."""
        call.headers = True
        return self._item(call, encoding, size, False)

    def goaway(self, code: int, text: str) -> bytes | None:
        """Take no more calls; those in flight go on. None when that is known already."""
        if self.leaving:
            return None
        self.leaving = True
        return goaway_message(self.serial, code, text)
