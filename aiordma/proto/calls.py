# cython: annotation_typing=False
"""The calls of one connection, without I/O: what its two machines have in common. The client's is in
``client_calls.py``, the server's in ``server_calls.py``.

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
    HELLO,
    ITEM_COST,
    REPLY,
    Hello,
    RpcMessage,
    credit_message,
    hello_message,
    item_head,
    pong_message,
)

#: Nothing for the owner to do.
NOTHING = 0
# The other events have the numbers of the messages' types: CALL, REPLY, ITEM, ...

MAX_WINDOW = 1 << 30
ID_MASK = 0xFFFFFFFF


class Calls:
    """Of both machines."""

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
