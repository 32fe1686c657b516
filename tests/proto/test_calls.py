"""The two machines of calls: played against each other in every order, and against peers that cheat."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from .cores import CORES

LIMIT = 3
WINDOW = 300


def pair(core: Any, *, calls: int = LIMIT, methods: int = 2, metadata: int = 100) -> tuple[Any, Any]:
    hello = core.rpc.Hello(calls, methods, WINDOW, metadata)
    client, server = core.client_calls.ClientCalls(hello), core.server_calls.ServerCalls(hello)
    assert server.receive(client.hello()) == core.rpc.HELLO
    assert client.receive(server.hello()) == core.rpc.HELLO
    return client, server


def call_message(core: Any, client: Any, kind: int = 0, name: str = "m", **fields: Any) -> tuple[Any, bytes]:
    call = client.start(kind, None)
    return call, client.head(call, client.method(name), 0, **fields)


class _Machines(RuleBasedStateMachine):
    """Two ends, everything between them in two queues. Payloads carry the serial of their call, so that a
    message for the wrong call is seen."""

    core: Any

    def __init__(self) -> None:
        super().__init__()
        self.rpc = self.core.rpc
        self.client, self.server = pair(self.core)
        self.to_server: deque[bytes] = deque()
        self.to_client: deque[bytes] = deque()
        self.mine: list[Any] = []  # calls of the client that were not replied to, the cancelled ones too
        self.theirs: list[Any] = []  # calls of the server
        self.refused: set[int] = set()
        self.accepted = self.replied = 0
        self.unread: dict[tuple[int, bool], list[int]] = {}  # items the application has not taken

    def pick(self, calls: list[Any], data: Any) -> Any:
        return calls[data.draw(st.integers(0, len(calls) - 1))]

    # -- the client

    @precondition(lambda self: len(self.client.calls) < LIMIT and not self.client.leaving)
    @rule(kind=st.integers(0, 3), window=st.sampled_from([0, 1, 1000]), name=st.sampled_from("abc"))
    def start(self, kind: int, window: int, name: str) -> None:
        method = self.client.method(name)
        call = self.client.start(kind, None, window)
        self.to_server.append(self.client.head(call, method, 0) + str(call.serial).encode())
        method.told = True
        self.mine.append(call)

    @precondition(lambda self: self.mine)
    @rule(data=st.data(), size=st.sampled_from([0, 50, 5000]), last=st.booleans())
    def client_item(self, data: Any, size: int, last: bool) -> None:
        call = self.pick(self.mine, data)
        if call.ended or call.cancelled or not self.client.may_send(call):
            return
        payload = str(call.serial).encode().rjust(size)
        self.to_server.append(self.client.item(call, 0, len(payload), last) + payload)

    @precondition(lambda self: self.mine)
    @rule(data=st.data())
    def client_end(self, data: Any) -> None:
        if (message := self.client.end(self.pick(self.mine, data))) is not None:
            self.to_server.append(message)

    @precondition(lambda self: self.mine)
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        if (message := self.client.cancel(self.pick(self.mine, data), 1)) is not None:
            self.to_server.append(message)

    @rule(number=st.integers(0, (1 << 64) - 1))
    def ping(self, number: int) -> None:
        self.to_server.append(self.rpc.ping_message(number))

    @precondition(lambda self: self.to_client)
    @rule()
    def client_receives(self) -> None:
        event = self.client.receive(self.to_client.popleft())
        call, payload = self.client.call, bytes(self.client.message.payload)
        if event == self.rpc.REPLY:
            self.mine.remove(call)
            assert call.closed
            self.replied += 1
            if self.client.message.extra == 0:
                assert int(payload) == call.serial
        elif event == self.rpc.ITEM:
            assert not call.cancelled
            assert int(payload) == call.serial
            self.unread.setdefault((call.serial, True), []).append(len(payload))
        elif event == self.rpc.PONG:
            assert self.client.message.clock_ns == self.client.message.number ^ 1
        elif event == self.rpc.GOAWAY:
            for refused in self.client.refused:
                self.mine.remove(refused)
                self.refused.add(refused.serial)

    @precondition(lambda self: any(client for _, client in self.unread))
    @rule()
    def client_takes(self) -> None:
        call = next((c for c in self.mine if self.unread.get((c.serial, True))), None)
        if call is not None:
            size = self.unread[call.serial, True].pop(0)
            if (message := self.client.taken(call, size)) is not None:
                self.to_server.append(message)

    # -- the server

    @precondition(lambda self: self.to_server)
    @rule()
    def server_receives(self) -> None:
        event = self.server.receive(self.to_server.popleft())
        call, payload = self.server.call, bytes(self.server.message.payload)
        if event == self.rpc.CALL:
            if self.server.target is None:
                self.server.bind(self.server.message.name)
            self.accepted += 1
            assert int(payload) == call.serial
            assert call.serial not in self.refused
            self.theirs.append(call)
        elif event == self.rpc.ITEM:
            assert int(payload) == call.serial
            self.unread.setdefault((call.serial, False), []).append(len(payload))
        elif event == self.rpc.PING:
            self.to_client.append(self.server.pong(self.server.message.number ^ 1))

    @precondition(lambda self: self.theirs)
    @rule(data=st.data(), well=st.booleans())
    def reply(self, data: Any, well: bool) -> None:
        call = self.pick(self.theirs, data)
        self.theirs.remove(call)
        if well:
            self.to_client.append(self.server.reply(call, 0) + str(call.serial).encode())
        else:
            self.to_client.append(self.server.fail(call, 5, "no"))

    @precondition(lambda self: self.theirs)
    @rule(data=st.data(), size=st.sampled_from([0, 50, 5000]))
    def server_item(self, data: Any, size: int) -> None:
        call = self.pick(self.theirs, data)
        if call.kind & 1 and self.server.may_send(call):
            payload = str(call.serial).encode().rjust(size)
            self.to_client.append(self.server.item(call, 0, len(payload)) + payload)

    @precondition(lambda self: self.theirs)
    @rule(data=st.data())
    def server_headers(self, data: Any) -> None:
        call = self.pick(self.theirs, data)
        if call.kind & 1 and not call.headers:
            self.to_client.append(self.server.headers(call, b""))

    @precondition(lambda self: self.theirs)
    @rule()
    def server_takes(self) -> None:
        call = next((c for c in self.theirs if self.unread.get((c.serial, False))), None)
        if call is not None:
            size = self.unread[call.serial, False].pop(0)
            if (message := self.server.taken(call, size)) is not None:
                self.to_client.append(message)

    @precondition(lambda self: not self.server.leaving and self.server.serial > 5)
    @rule()
    def goaway(self) -> None:
        self.to_client.append(self.server.goaway(14, "draining"))
        assert self.server.goaway(14, "draining") is None

    # -- what always holds

    @invariant()
    def bounded(self) -> None:
        assert len(self.client.calls) <= LIMIT
        assert len(self.server.calls) <= LIMIT
        assert len(self.client.calls) == len(self.mine)
        assert self.replied <= self.accepted
        for call in self.theirs:
            unread = self.unread.get((call.serial, False), [])
            # all but one item fit into the window, whatever it does not know of yet included
            assert sum(size + self.rpc.ITEM_COST for size in unread[:-1]) <= WINDOW

    def teardown(self) -> None:
        """Everything that is on its way arrives, every call is answered: nothing is left."""
        while self.to_server or self.to_client or self.theirs:
            while self.to_server:
                self.server_receives()
            while self.theirs:
                self.to_client.append(self.server.fail(self.theirs.pop(), 1, "over"))
            while self.to_client:
                self.client_receives()
        assert not self.mine
        assert not self.client.calls
        assert not self.server.calls
        assert self.accepted == self.replied


class Interpreted(_Machines):
    core = CORES["interpreted"]


class Installed(_Machines):
    core = CORES.get("compiled", CORES["interpreted"])


for _machine in (Interpreted, Installed):
    _machine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestInterpreted = Interpreted.TestCase
TestInstalled = Installed.TestCase


def test_a_method_is_named_until_that_was_told(core: Any) -> None:
    client, server = pair(core)
    for told in (False, False, True):
        call, head = call_message(core, client)
        assert (b"m" in head[12:]) != told
        server.receive(head)
        assert server.target == ("bound" if told else None) or server.message.name == "m"
        server.bind("bound")
        client.receive(server.reply(server.call, 0))
        client.method("m").told = call.serial >= 2
    assert server.target == "bound"


def test_names_beyond_the_table_are_always_sent(core: Any) -> None:
    client, server = pair(core, methods=1)
    for name, number in (("a", 1), ("b", 0), ("b", 0), ("a", 1)):
        _, head = call_message(core, client, name=name)
        assert client.method(name).number == number
        server.receive(head)
        assert server.message.name == name
        client.receive(server.reply(server.call, 0))


def test_ids_in_use_are_passed_over_and_serials_never_wrap(core: Any) -> None:
    client, server = pair(core)
    client.serial = server.seen = (1 << 32) - 2
    old, head = call_message(core, client)
    server.receive(head)
    client.serial += (1 << 32) - 2
    server.seen += (1 << 32) - 2
    ids = []
    for _ in range(2):
        call, head = call_message(core, client)
        server.receive(head)
        ids.append(call.id)
        assert call.serial == server.call.serial == client.serial == server.serial
        client.receive(server.reply(server.call, 0))
    assert old.id == 0xFFFFFFFF
    assert ids == [0xFFFFFFFE, 1]


def test_goaway_tells_which_calls_were_looked_at(core: Any) -> None:
    client, server = pair(core)
    calls = [call_message(core, client) for _ in range(3)]
    server.receive(calls[0][1])
    seen = server.call
    goaway = server.goaway(14, "bye")
    for _, head in calls[1:]:
        assert server.receive(head) == core.calls.NOTHING
    assert client.receive(goaway) == core.rpc.GOAWAY
    assert client.refused == [call for call, _ in calls[1:]]
    assert client.receive(server.reply(seen, 0)) == core.rpc.REPLY
    with pytest.raises(Exception, match="after GOAWAY"):
        client.start(0, None)


def test_goaway_lets_what_is_on_its_way_pass(core: Any) -> None:
    client, server = pair(core)
    assert client.receive(server.goaway(14, "bye")) == core.rpc.GOAWAY
    for message in (
        core.rpc.call_head(1, core.rpc.BIDI, 0, 1, b"m", window=100),
        core.rpc.item_head(1, 0),
        core.rpc.cancel_message(1, 1),
    ):
        assert server.receive(message) == core.calls.NOTHING
    with pytest.raises(Exception, match="never was"):
        server.receive(core.rpc.cancel_message(2, 1))


def test_a_goaway_to_a_client_that_makes_no_more_calls(core: Any) -> None:
    """Both ends may end it at the same time. A second GOAWAY is still one too many."""
    client, server = pair(core)
    _, first = call_message(core, client)
    late, _ = call_message(core, client)
    server.receive(first)
    client.leaving = True
    assert client.receive(server.goaway(14, "bye")) == core.rpc.GOAWAY
    assert client.refused == [late]
    assert client.receive(server.reply(server.call, 0)) == core.rpc.REPLY
    with pytest.raises(Exception, match="a second GOAWAY"):
        client.receive(core.rpc.goaway_message(1, 14, "bye"))


def test_a_late_reply_frees_the_call_and_is_marked(core: Any) -> None:
    client, server = pair(core)
    call, head = call_message(core, client, core.rpc.SERVER_STREAM)
    server.receive(head)
    cancel = client.cancel(call, 1)
    assert client.cancel(call, 1) is None
    for message in (server.headers(server.call, b""), server.item(server.call, 0, 0)):
        assert client.receive(message) == core.calls.NOTHING
    served = server.call
    assert client.receive(server.reply(served, 0)) == core.rpc.REPLY
    assert client.call is call
    assert call.cancelled
    assert not client.calls
    assert server.receive(cancel) == core.calls.NOTHING


def test_deadlines_in_order_without_those_that_are_over(core: Any) -> None:
    deadlines = core.deadlines.Deadlines()
    calls = [core.call.Call(i, i, 0, None) for i in range(1000)]
    assert deadlines.next() == math.inf
    assert deadlines.add(calls[1], 5.0)
    assert not deadlines.add(calls[2], 7.0)
    assert deadlines.add(calls[3], 3.0)
    calls[3].closed = True
    assert deadlines.next() == 5.0
    assert deadlines.expired(4.9) == []
    calls[2].cancelled = True
    assert deadlines.expired(10.0) == [calls[1]]
    for call in calls:
        deadlines.add(call, 1e6)
        call.closed = True
    assert len(deadlines) <= 64
    assert deadlines.next() == math.inf


def _misdeeds_of_a_client(core: Any) -> dict[str, list[bytes]]:
    rpc = core.rpc
    start = rpc.call_head(1, rpc.UNARY, 0, 1, b"m")
    stream = rpc.call_head(1, rpc.BIDI, 0, 1, b"m", window=100)
    item = rpc.item_head(1, 0)
    return {
        "hello twice": [rpc.hello_message(rpc.Hello(1, 1, 1, 1))],
        "goaway": [rpc.goaway_message(0, 0, "")],
        "reply": [rpc.reply_head(1, 0)],
        "headers": [rpc.headers_message(1, b"")],
        "too many calls": [rpc.call_head(i, 0, 0, 1, b"m") for i in range(1, LIMIT + 2)],
        "the same id": [start, start],
        "an older id": [rpc.call_head(9, 0, 0, 1, b"m"), start],
        "unnamed method": [rpc.call_head(1, 0, 0, 1)],
        "method left out": [rpc.call_head(1, 0, 0, 2, b"m"), rpc.call_head(2, 0, 0, 1)],
        "method renamed": [start, rpc.call_head(2, 0, 0, 1, b"n")],
        "too many methods": [rpc.call_head(i, 0, 0, i, b"m%d" % i) for i in range(1, 4)],
        "no window": [rpc.call_head(1, 1, 0, 1, b"m", window=0)],
        "huge window": [rpc.call_head(1, 1, 0, 1, b"m", window=1 << 31)],
        "metadata": [rpc.call_head(1, 0, 0, 1, b"m", metadata=bytes(101))],
        "item of a unary call": [start, item],
        "item after END": [stream, rpc.end_message(1), item],
        "item after the last": [stream, rpc.item_head(1, 0, True), item],
        "items without credit": [stream, *([item + bytes(100)] * 3)],
        "END twice": [stream, rpc.end_message(1), rpc.end_message(1)],
        "END of a unary call": [start, rpc.end_message(1)],
        "CANCEL twice": [start, rpc.cancel_message(1, 1), rpc.cancel_message(1, 1)],
        "credit for a unary call": [start, rpc.credit_message(1, 1)],
        "no credit": [stream, rpc.credit_message(1, 0)],
        "endless credit": [stream, rpc.credit_message(1, 0xFFFFFFFF)],
        "a call that never was": [start, rpc.cancel_message(2, 1)],
        "a call before the first": [rpc.cancel_message(1, 1)],
    }


def _misdeeds_of_a_server(core: Any) -> dict[str, tuple[int, list[bytes]]]:
    rpc = core.rpc
    item = rpc.item_head(1, 0)
    return {
        "hello twice": (0, [rpc.hello_message(rpc.Hello(1, 1, 1, 1))]),
        "call": (0, [rpc.call_head(1, 0, 0, 1, b"m")]),
        "cancel": (0, [rpc.cancel_message(1, 1)]),
        "end": (0, [rpc.end_message(1)]),
        "reply to nothing": (0, [rpc.reply_head(2, 0)]),
        "reply twice": (0, [rpc.reply_head(1, 0), rpc.reply_head(1, 0)]),
        "item after the reply": (1, [rpc.reply_head(1, 0), item]),
        "item of a unary call": (0, [item]),
        "last item": (1, [rpc.item_head(1, 0, True)]),
        "items without credit": (1, [item + bytes(100)] * 3),
        "headers of a unary call": (0, [rpc.headers_message(1, b"")]),
        "headers twice": (1, [rpc.headers_message(1, b"")] * 2),
        "headers after an item": (1, [item, rpc.headers_message(1, b"")]),
        "metadata": (0, [rpc.reply_head(1, 0, bytes(60), bytes(60))]),
        "credit of a unary call": (0, [rpc.credit_message(1, 1)]),
        "goaway twice": (0, [rpc.goaway_message(1, 0, "")] * 2),
        "goaway from the future": (0, [rpc.goaway_message(2, 0, "")]),
    }


@pytest.mark.parametrize("name", list(_misdeeds_of_a_client(CORES["interpreted"])))
def test_a_client_that_breaks_the_rules(core: Any, name: str) -> None:
    _, server = pair(core)
    *before, last = _misdeeds_of_a_client(core)[name]
    for message in before:
        server.receive(message)
    with pytest.raises(Exception, match=r".") as caught:
        server.receive(last)
    assert type(caught.value).__name__ == "RemoteProtocolError"


@pytest.mark.parametrize("name", list(_misdeeds_of_a_server(CORES["interpreted"])))
def test_a_server_that_breaks_the_rules(core: Any, name: str) -> None:
    client, _ = pair(core)
    kind, messages = _misdeeds_of_a_server(core)[name]
    call_message(core, client, kind)
    *before, last = messages
    for message in before:
        client.receive(message)
    with pytest.raises(Exception, match=r".") as caught:
        client.receive(last)
    assert type(caught.value).__name__ == "RemoteProtocolError"


@pytest.mark.parametrize("first", ["call", "ping", "goaway"])
def test_hello_comes_first(core: Any, first: str) -> None:
    rpc = core.rpc
    message = {
        "call": rpc.call_head(1, 0, 0, 1, b"m"),
        "ping": rpc.ping_message(1),
        "goaway": rpc.goaway_message(0, 0, ""),
    }[first]
    hello = rpc.Hello(1, 1, 1, 1)
    for machine in (core.client_calls.ClientCalls(hello), core.server_calls.ServerCalls(hello)):
        with pytest.raises(Exception, match=r"no HELLO|only clients send"):
            machine.receive(message)


def test_what_this_end_must_not_do(core: Any) -> None:
    client, server = pair(core, calls=1)
    call, head = call_message(core, client, core.rpc.BIDI)
    with pytest.raises(Exception, match="in flight than the 1"):
        client.start(0, None)
    with pytest.raises(Exception, match="of metadata"):
        client.head(call, client.method("m"), 0, metadata=bytes(101))
    server.receive(head)
    assert client.item(call, 0, 1000, True)
    with pytest.raises(Exception, match="has ended"):
        client.may_send(call)
    server.item(server.call, 0, 1000)
    assert not server.may_send(server.call)
    with pytest.raises(Exception, match="without credit"):
        server.item(server.call, 0, 0)
    with pytest.raises(Exception, match="cannot be sent any more"):
        server.headers(server.call, b"")
    server.reply(server.call, 0)
    twice: list[Callable[[], object]] = [
        lambda: server.reply(server.call, 0),
        lambda: server.may_send(server.call),
    ]
    for again in twice:
        with pytest.raises(Exception, match="replied to already"):
            again()
    with pytest.raises(ValueError, match="method name"):
        client.method("m" * 256)


def test_lost_calls(core: Any) -> None:
    client, _ = pair(core)
    calls = [client.start(0, None) for _ in range(3)]
    assert client.lost() == calls
    assert all(call.closed for call in calls)
    assert client.calls == {}


@pytest.mark.parametrize("core", CORES.values(), ids=CORES)
def test_calls_are_counted_by_method(core: Any) -> None:
    """Begun, ended without a result (an error, cancelled, lost), and in flight."""
    client, server = pair(core, calls=10)
    taken = {}
    for name in ("good", "bad", "good", "cancelled", "withdrawn", "lost"):
        call, message = (
            call_message(core, client, name=name) if name != "withdrawn" else (client.start(0, None), b"")
        )
        if name == "withdrawn":
            client.head(call, client.method("lost"), 0)
            client.forget(call)
            continue
        assert server.receive(message) == core.rpc.CALL
        taken[call.id] = name, call, server.call
    for name, call, theirs in list(taken.values())[:4]:
        if name == "cancelled":
            assert server.receive(client.cancel(call, 1)) == core.rpc.CANCEL
        failed = name in ("bad", "cancelled")
        reply = server.fail(theirs, 2, "no") if failed else server.reply(theirs, 0)
        assert client.receive(reply) == core.rpc.REPLY
    # The table has two numbers: calls of further methods are counted at the server, as one.
    assert client.counts() == [("good", 2, 0, 0), ("bad", 1, 1, 0)]
    assert server.counts() == [("", 2, 1, 1), ("good", 2, 0, 0), ("bad", 1, 1, 0)]
    server.lost()
    client.lost()
    assert server.counts()[0] == ("", 2, 2, 0)
    assert client.counts() == [("good", 2, 0, 0), ("bad", 1, 1, 0)]


@pytest.mark.parametrize("core", CORES.values(), ids=CORES)
def test_calls_that_end_with_their_connection_are_errors(core: Any) -> None:
    client, server = pair(core)
    for number in range(3):
        call, message = call_message(core, client)
        assert server.receive(message) == core.rpc.CALL
        if number == 0:
            assert client.receive(server.reply(server.call, 0)) == core.rpc.REPLY
        elif number == 1:
            client.cancel(call, 1)
    assert client.counts() == [("m", 3, 1, 2)]
    client.lost()
    server.lost()
    assert (client.counts(), server.counts()) == ([("m", 3, 2, 0)], [("m", 3, 2, 0)])


@pytest.mark.parametrize("core", CORES.values(), ids=CORES)
def test_calls_that_a_goaway_refuses_are_errors(core: Any) -> None:
    client, server = pair(core)
    goaway = server.goaway(0, "")
    call_message(core, client)
    assert client.receive(goaway) == core.rpc.GOAWAY
    assert client.counts() == [("m", 1, 1, 0)]
