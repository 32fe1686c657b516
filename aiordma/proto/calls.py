# cython: annotation_typing=False
"""The calls of one connection: two machines, the client's and the server's, without I/O.

Messages go in (``receive``), the number of an event comes out, and what belongs to it is in the machine's
fields until the next message. The methods for sending return the message, or its head where a payload
follows; the owner hands them to the channel in that order. The rules:

* **A call is in flight from its CALL to its REPLY**, and every CALL that was accepted gets exactly one REPLY,
  cancelled or not. So the number of calls in flight, which the server grants in its HELLO, bounds what a
  client can make a server do; and an id that has not been replied to is never given to another call, so a
  late reply cannot be taken for that of another one. A client that cancels keeps the call as *draining*
  until the REPLY comes: everything for it is dropped.
* **Ids count up** modulo 2^32; those still in use are passed over. Both ends extend them to 64-bit *serials*,
  by which a GOAWAY states exactly which calls were accepted: all the others were never looked at.
* **Items cost credit by their bytes** (and ``ITEM_COST`` each). One item may be sent whenever the window is
  above zero, whatever its size; it may then go below zero. The receiver gives credit back when its
  application takes an item, half a window at a time. What an application does not take is bounded by a
  window and one message.
* After its REPLY the server forgets a call. What the client sent before it knew is dropped; about calls that
  never were, or out of turn, it is an error of the peer, which ends the connection.

Compiled as well (``calls.pxd``), on the rules of ``cursor.py``.
"""

from __future__ import annotations

from typing import Any

from .call import Call, MethodNumber
from .deadlines import Deadlines
from .errors import LocalProtocolError, RemoteProtocolError
from .rpc import (
    CALL,
    CANCEL,
    CREDIT,
    END,
    FLAG_END,
    GOAWAY,
    HEADERS,
    HELLO,
    ITEM,
    ITEM_COST,
    MAX_DETAILS_BYTES,
    MAX_NAME_BYTES,
    REPLY,
    Hello,
    RpcMessage,
    call_head,
    cancel_message,
    credit_message,
    end_message,
    error_message,
    goaway_message,
    headers_message,
    hello_message,
    item_head,
    pong_message,
    reply_head,
)

#: Nothing for the owner to do.
NOTHING = 0
# The other events have the numbers of the messages' types: CALL, REPLY, ITEM, ...

MAX_WINDOW = 1 << 30
_ID_MASK = 0xFFFFFFFF


class Calls:
    """What both machines have in common."""

    def __init__(self, hello: Hello) -> None:
        if not 1 <= hello.window <= MAX_WINDOW:
            raise ValueError(f"window={hello.window}: must be from 1 to {MAX_WINDOW} bytes")
        #: what this end grants; what the peer does, once its HELLO has come
        self.own = hello
        self.peer: Hello | None = None
        self.calls: dict[int, Call] = {}
        #: the last message, and the call it belongs to
        self.message = RpcMessage()
        self.call: Any = None
        #: serial of the last call that was made or seen
        self.serial = 0
        #: a GOAWAY was sent or received, or the owner makes no more calls
        self.leaving = False
        self.deadlines = Deadlines()

    def hello(self) -> bytes:
        """The first message of this end."""
        return hello_message(self.own)

    def lost(self) -> list[Call]:
        """The connection is gone: every call in flight, oldest first."""
        calls = list(self.calls.values())
        self.calls = {}
        self.call = None  # its owner may refer to the owner of this machine
        for call in calls:
            call.closed = True
            if call.method is not None and not call.cancelled:
                call.method.errors += 1
        return calls

    def _count(self, methods: list[MethodNumber]) -> list[tuple[str, int, int, int]]:
        in_flight: dict[int, int] = {}
        for call in self.calls.values():
            if call.method is not None:
                number = call.method.number
                in_flight[number] = in_flight.get(number, 0) + 1
        return [
            (each.name.decode(), each.calls, each.errors, in_flight.get(each.number, 0))
            for each in methods
            if each.calls
        ]

    # ---- items, alike in both directions

    def _may_send(self, call: Call) -> bool:
        """Whether an item may be sent now; False when there is no credit."""
        return call.send_window > 0

    def _item(self, call: Call, encoding: int, size: int, last: bool) -> bytes:
        if call.send_window <= 0:
            raise LocalProtocolError("an item without credit for it: wait for CREDIT")
        call.send_window -= size + ITEM_COST
        return item_head(call.id, encoding, last)

    def take_back(self, call: Call, size: int) -> None:
        """The item of ``size`` bytes, the last one whose head was made, was not sent and never will be."""
        call.send_window += size + ITEM_COST

    def taken(self, call: Call, size: int) -> bytes | None:
        """The application has taken an item of ``size`` bytes; the CREDIT to send for it, if it is time."""
        call.owed += size + ITEM_COST
        if call.owed * 2 < call.receive_limit or call.closed or call.cancelled:
            return None
        more = call.owed
        call.owed = 0
        call.receive_window += more
        return credit_message(call.id, more)

    def _receive_item(self, call: Call) -> None:
        if call.receive_window <= 0:
            raise RemoteProtocolError(f"call {call.id}: an item without credit for it")
        call.receive_window -= len(self.message.payload) + ITEM_COST

    def _receive_credit(self, call: Call) -> None:
        call.send_window += self.message.window
        if call.send_window > MAX_WINDOW or self.message.window == 0:
            raise RemoteProtocolError(f"call {call.id}: credit of {self.message.window} bytes")

    def _receive_hello(self) -> int:
        hello = self.message.hello
        assert hello is not None
        if self.peer is not None:
            raise RemoteProtocolError("a second HELLO")
        if not 1 <= hello.window <= MAX_WINDOW:
            raise RemoteProtocolError(f"HELLO: a window of {hello.window} bytes")
        self.peer = hello
        return HELLO

    def _check_metadata(self) -> None:
        message = self.message
        size = 0 if message.metadata is None else len(message.metadata)
        if message.type == REPLY and message.trailing is not None:
            size += len(message.trailing)
        if size > self.own.metadata:
            raise RemoteProtocolError(f"{size} bytes of metadata; {self.own.metadata} are allowed")

    def pong(self, clock_ns: int) -> bytes:
        """The answer to the PING that was just received."""
        return pong_message(self.message.number, clock_ns)


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
        while serial & _ID_MASK == 0 or serial & _ID_MASK in self.calls:
            serial += 1
        self.serial = serial
        call = Call(serial & _ID_MASK, serial, kind, owner)
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
            if (self.seen - message.call_id) & _ID_MASK >= 0x80000000 or not self.seen:
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
        step = (message.call_id - self.seen) & _ID_MASK
        if step == 0 or step >= 0x80000000:
            raise RemoteProtocolError(f"call {message.call_id} after call {self.seen & _ID_MASK}")
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
