"""The negotiation in virtual time: both ends, every message lost or cut anywhere, and never two truths."""

from __future__ import annotations

import itertools
import random
from collections import deque
from typing import Any

import pytest

from aiordma.proto import clc
from aiordma.proto.codes import Code
from aiordma.proto.errors import LocalProtocolError
from aiordma.proto.events import (
    Accepted,
    Claimed,
    Confirmed,
    Event,
    Failed,
    LinkLost,
    PlainPeer,
    Proposed,
    Send,
    UseRdma,
    UseTcp,
)
from aiordma.proto.failover import Leave
from aiordma.proto.handshake import (
    CLIENT_TABLE,
    OTHER_SERVER_TABLE,
    SERVER_TABLE,
    ClientHandshake,
    ServerHandshake,
    State,
    Timeouts,
)
from aiordma.proto.proof import accept_proof

TIMEOUTS = Timeouts(negotiate=6.0, link=5.0, first_bytes=0.2)
PROPOSAL = clc.Proposal(engine_id=b"C" * 16, nonce=b"N" * 16, host_id=b"H" * 16)
FIELDS: dict[str, Any] = {
    "first_contact": True, "gid": bytes(16), "qpn": 5, "psn": 6, "mtu": 3, "rkey": 7, "rmb_addr": 4096,
    "ring_bytes": 65536, "token": 9, "host_id": b"H" * 16, "window": 64,
}  # fmt: skip
ACCEPT = clc.Accept(engine_id=b"S" * 16, proof=accept_proof(b"N" * 16, b"S" * 16), **FIELDS)
CONFIRM = clc.Confirm(engine_id=b"C" * 16, **FIELDS)
DECLINE = clc.Decline(diagnosis=Code.NO_DEVICE)
CLAIM = clc.Claim(engine_id=b"C" * 16, ticket=3, service=4, token=5, rkey=6, ring_addr=4096, ring_bytes=65536)


def client() -> ClientHandshake:
    return ClientHandshake(PROPOSAL, TIMEOUTS, 0.0)


def server(**options: Any) -> ServerHandshake:
    return ServerHandshake(TIMEOUTS, 0.0, **options)


def test_a_claim_needs_no_answer() -> None:
    s = server()
    assert s.receive(CLAIM.encode(), 0.1) == [Claimed(CLAIM)]
    assert s.next_deadline() is None
    assert s.established(0.2) == [UseRdma()]


def test_a_refused_claim_ends_the_connection() -> None:
    """The client writes into a ring already: going on with TCP would lose what it wrote."""
    s = server()
    assert s.receive(CLAIM.encode(), 0.1) == [Claimed(CLAIM)]
    send, failed = s.refuse(Code.TICKET_UNKNOWN, 0.2)
    assert isinstance(send, Send)
    assert clc.decode(send.data) == clc.Decline(diagnosis=Code.TICKET_UNKNOWN)
    assert isinstance(failed, Failed)
    assert failed.code == Code.TICKET_UNKNOWN
    assert s.done


def test_a_client_of_version_1_is_declined_in_version_1() -> None:
    """Linux takes a Decline of another length for a broken peer, and its connect() fails."""
    header = clc.EYE_CATCHER + bytes.fromhex("01003410")
    s = server()
    assert isinstance(s.receive(header + bytes(40) + clc.EYE_CATCHER, 0.1)[0], Proposed)
    send, end = s.refuse(Code.MODE_MISMATCH, 0.2)
    assert isinstance(send, Send)
    assert (send.data[7] >> 4, len(send.data)) == (1, 28)
    assert isinstance(end, UseTcp)
    s = server()
    s.receive(PROPOSAL.encode(), 0.1)
    send, _ = s.refuse(Code.MODE_MISMATCH, 0.2)
    assert isinstance(send, Send)
    assert (send.data[7] >> 4, len(send.data)) == (2, 44)


@pytest.mark.parametrize("end", ["client", "server"])
def test_a_claim_out_of_turn_is_a_violation(end: str) -> None:
    if end == "client":
        c = client()
        c.start()
        assert isinstance(c.receive(CLAIM.encode(), 0.1)[0], Failed)
    else:
        s = server()
        s.receive(PROPOSAL.encode(), 0.1)
        s.ready(ACCEPT, 0.2)
        assert isinstance(s.receive(CLAIM.encode(), 0.3)[0], Failed)


AGAIN = clc.Proposal(engine_id=b"C" * 16, nonce=b"M" * 16, host_id=b"H" * 16, unknown_qpn=5)
OLD = clc.Accept(**{**FIELDS, "first_contact": False, "engine_id": b"S" * 16, "proof": bytes(16)})


def test_an_unknown_link_is_asked_about_once() -> None:
    c, s = client(), server()
    s.receive(PROPOSAL.encode(), 0.1)
    (accept,) = s.ready(OLD, 0.2)
    assert isinstance(accept, Send)
    assert c.receive(accept.data, 0.3) == [Accepted(OLD)]
    may_ask = [c.may_ask_again]
    (asked,) = c.again(AGAIN, 0.4)
    assert isinstance(asked, Send)
    may_ask.append(c.may_ask_again)
    assert may_ask == [True, False]
    assert c.next_deadline() == 0.4 + 6
    assert s.receive(asked.data, 0.5) == [Proposed(AGAIN)]
    (second,) = s.ready(ACCEPT, 0.6)
    assert isinstance(second, Send)
    assert c.receive(second.data, 0.7) == [Accepted(ACCEPT)]
    with pytest.raises(LocalProtocolError, match="not a third"):
        c.again(AGAIN, 0.8)
    (confirm,) = c.ready(CONFIRM, 0.9)
    assert isinstance(confirm, Send)
    assert s.receive(confirm.data, 1.0) == [Confirmed(CONFIRM)]


@pytest.mark.parametrize("what", ["twice", "another link", "no link", "of a new link"])
def test_a_second_proposal_out_of_turn_is_a_violation(what: str) -> None:
    s = server()
    s.receive(PROPOSAL.encode(), 0.1)
    s.ready(ACCEPT if what == "of a new link" else OLD, 0.2)
    if what == "twice":
        assert s.receive(AGAIN.encode(), 0.3) == [Proposed(AGAIN)]
        s.ready(OLD, 0.4)
    wrong = {"another link": 6, "no link": 0}.get(what, 5)
    (failed,) = s.receive(AGAIN.changed(unknown_qpn=wrong).encode(), 0.5)
    assert isinstance(failed, Failed)
    assert failed.code == Code.PROTOCOL_VIOLATION
    assert s.done


def test_a_peer_that_has_answered_once_is_no_plain_one() -> None:
    """What follows the second Proposal is no stream of a plain server, whatever it is."""
    for trouble in ("garbage", "eof", "time"):
        c = client()
        c.start()
        c.receive(OLD.encode(), 0.1)
        c.again(AGAIN, 0.2)
        if trouble == "garbage":
            events = c.receive(b"HTTP/1.1 400 Bad Request", 0.3)
        else:
            events = c.eof(0.3) if trouble == "eof" else c.on_timer(6.3)
        assert isinstance(events[0], Failed)


def test_good_way() -> None:
    c, s = client(), server()
    (propose,) = c.start()
    assert isinstance(propose, Send)
    assert s.receive(propose.data, 0.1) == [Proposed(PROPOSAL)]
    assert s.next_deadline() is None
    (accept,) = s.ready(ACCEPT, 0.2)
    assert isinstance(accept, Send)
    assert s.next_deadline() == 0.2 + 6
    assert c.receive(accept.data, 0.3) == [Accepted(ACCEPT)]
    assert c.next_deadline() is None
    (confirm,) = c.ready(CONFIRM, 0.4)
    assert isinstance(confirm, Send)
    assert c.next_deadline() == 0.4 + 5 + 6
    assert s.receive(confirm.data, 0.5) == [Confirmed(CONFIRM)]
    assert s.established(0.6) == [UseRdma()]
    assert c.established(0.7) == [UseRdma()]
    for end in (c, s):
        assert end.done
        assert end.next_deadline() is None
        with pytest.raises(LocalProtocolError, match="is over"):
            end.receive(b"x", 1.0)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"\xe2\xd4hello", b"\0"])
@pytest.mark.parametrize("step", [1, 100])
def test_plain_client_loses_no_byte(data: bytes, step: int) -> None:
    s = server()
    given = b""
    for i in range(0, len(data), step):
        given += data[i : i + step]
        events = s.receive(data[i : i + step], 0.0)
        if events:
            break
    assert events == [UseTcp(Code.PLAIN_TCP_PEER, None, given)]


def test_silent_client_is_served_plain_where_the_server_speaks_first() -> None:
    s = server()
    assert s.on_timer(0.1) == []
    assert s.next_deadline() == 0.2
    assert s.on_timer(0.2) == [UseTcp(Code.PLAIN_TCP_PEER, None, b"")]
    s = server(speaks_first=False)
    assert s.next_deadline() is None
    assert s.on_timer(1e9) == []
    s = server()
    assert s.receive(clc.EYE_CATCHER[:2], 0.1) == []
    assert s.on_timer(0.3) == []  # it may still be a Proposal
    assert s.receive(clc.EYE_CATCHER[2:3], 5.0) == []  # a trickle gains no more time
    assert s.receive(b"", 5.0) == []
    assert s.on_timer(6.1) == [UseTcp(Code.PLAIN_TCP_PEER, None, clc.EYE_CATCHER[:3])]
    assert server().eof(0.0) == [UseTcp(Code.PLAIN_TCP_PEER, None, b"")]


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n",
        PROPOSAL.encode(),
        CONFIRM.encode(),
        clc.EYE_CATCHER + b"\x02\xff\xff\x20",
        None,
    ],
)
def test_peer_that_knows_nothing_of_it(answer: bytes | None) -> None:
    c = client()
    events = c.eof(0.1) if answer is None else c.receive(answer, 0.1)
    if answer == CONFIRM.encode():
        assert isinstance(events[0], Failed)  # it does know CLC, but not the order
    else:
        assert isinstance(events[0], PlainPeer)
    c = client()
    assert c.on_timer(5.9) == []
    assert isinstance(c.on_timer(6.0)[0], PlainPeer)


def test_decline_with_the_first_bytes_of_the_stream() -> None:
    c = client()
    assert c.receive(DECLINE.encode() + b"220 hello\r\n", 0.0) == [
        UseTcp(Code.NO_DEVICE, Code.NO_DEVICE, b"220 hello\r\n")
    ]
    s = server()
    s.receive(PROPOSAL.encode(), 0.0)
    events = s.refuse(Code.DISABLED, 0.0)
    assert isinstance(events[0], Send)
    assert events[1] == UseTcp(Code.DISABLED, None, b"")
    s = server()
    s.receive(PROPOSAL.encode(), 0.0)
    s.ready(ACCEPT, 0.0)
    assert s.receive(DECLINE.encode() + b"GET /", 0.0) == [UseTcp(Code.NO_DEVICE, Code.NO_DEVICE, b"GET /")]


def test_bytes_out_of_turn_fail() -> None:
    s = server()
    events = s.receive(PROPOSAL.encode() + b"x", 0.0)
    assert [type(e) for e in events] == [Failed]
    c = client()
    assert isinstance(c.receive(ACCEPT.encode() + DECLINE.encode(), 0.0)[0], Failed)
    c = client()
    c.receive(ACCEPT.encode(), 0.0)
    assert isinstance(c.receive(b"\xe2", 0.0)[0], Failed)


@pytest.mark.parametrize("size", [1, 4, 20, 60])
def test_a_server_that_lost_the_link_takes_the_client_along(size: int) -> None:
    """Its first message of the failover, or what has come of it, ends the client's negotiation."""
    leave = Leave(token=7, sent=0, placed=0, arrived=0).encode()
    c = client()
    c.receive(ACCEPT.encode(), 0.0)
    c.ready(CONFIRM, 0.0)
    assert c.receive(leave[:size], 1.0) == [LinkLost(leave[:size])]
    assert c.state is State.RDMA
    # Not before the client has confirmed, and never from a client: what that sends is the stream's.
    c = client()
    c.receive(ACCEPT.encode(), 0.0)
    assert [type(event) for event in c.receive(leave, 1.0)] == [Failed]


def test_silence_after_accept_is_an_error_not_a_fallback() -> None:
    c = client()
    c.receive(ACCEPT.encode(), 0.0)
    c.ready(CONFIRM, 0.0)
    assert c.on_timer(5.0) == []  # the server may notice only then that the link is lost
    assert c.on_timer(5.0 + 6.0) == [
        Failed(Code.TIMEOUT_CONFIRM_LINK, "nothing came in time while waiting for the link")
    ]
    s = server()
    s.receive(PROPOSAL.encode(), 0.0)
    s.ready(ACCEPT, 0.0)
    assert isinstance(s.on_timer(6.0)[0], Failed)


def test_own_mistakes_are_local_errors() -> None:
    with pytest.raises(LocalProtocolError, match="established"):
        client().established(0.0)
    with pytest.raises(LocalProtocolError, match="ready"):
        server().ready(ACCEPT, 0.0)
    with pytest.raises(LocalProtocolError, match="refuse"):
        client().refuse(Code.DISABLED, 0.0)
    c = client()
    c.eof(0.0)
    with pytest.raises(LocalProtocolError, match="is over"):
        c.refuse(Code.DISABLED, 0.0)


TABLES = (
    (CLIENT_TABLE, State.PROPOSED, {State.RDMA, State.TCP, State.PLAIN, State.FAILED}),
    (SERVER_TABLE, State.READING, {State.RDMA, State.TCP, State.FAILED}),
    (OTHER_SERVER_TABLE, State.READING, {State.RDMA, State.TCP, State.FAILED}),
)


def test_tables_reach_every_state_and_leave_every_wait() -> None:
    for table, start, ends in TABLES:
        reached = {start}
        while True:
            more = {target for (state, _), target in table.items() if state in reached} - reached
            if not more:
                break
            reached |= more
        assert reached == {state for state, _ in table} | ends
        assert not {state for state, _ in table} & ends


@pytest.mark.parametrize("end", ["client", "server", "server of others"])
def test_no_state_waits_for_a_peer_without_end(end: str) -> None:
    """Whatever the peer sends, and however far it goes: where this end has done what it was asked to, there
    is a deadline. Servers of others are asked for nothing that only ends of aiordma know."""
    asked = set()
    sent = [message.encode() for message in (PROPOSAL, AGAIN, OLD, ACCEPT, CONFIRM, CLAIM, DECLINE)]
    for messages in itertools.product(sent, repeat=4):
        handshake: ClientHandshake | ServerHandshake = client() if end == "client" else server()
        if end == "server of others":
            handshake.with_other_smc()
        for message in messages:
            (event,) = handshake.receive(message, 0.0)
            asked.add(type(event))
            if isinstance(event, Proposed) and isinstance(handshake, ServerHandshake):
                handshake.ready(OLD, 0.0)
            elif isinstance(event, Accepted) and isinstance(handshake, ClientHandshake):
                if event.accept.first_contact or not handshake.may_ask_again:
                    handshake.ready(CONFIRM, 0.0)
                else:
                    handshake.again(AGAIN, 0.0)
            elif isinstance(event, Claimed):
                handshake.established(0.0)
            assert (handshake.next_deadline() is None) == handshake.done
            if handshake.done or handshake.heard_all:
                break
    ends = {Failed, UseTcp}
    assert (
        asked
        == ends
        | {
            "client": {Accepted, PlainPeer},
            "server": {Proposed, Confirmed, Claimed},
            "server of others": {Proposed, Confirmed},
        }[end]
    )


class Net:
    """Two ends on a TCP connection in virtual time. A plan makes engines refuse or fail, loses a message of
    one kind, or resets the connection after a given number of deliveries."""

    def __init__(self, plan: dict[Any, Any], rng: random.Random) -> None:
        self.plan, self.rng = plan, rng
        self.now = 0.0
        self.ends: dict[str, Any] = {"c": client(), "s": server()}
        self.pipes: dict[str, deque[bytes]] = {"c": deque(), "s": deque()}  # towards that end
        self.work: deque[tuple[str, Event]] = deque()
        self.result: dict[str, Event] = {}
        self.closed = False
        self.deliveries = 0
        self.link_up = {"c": False, "s": False}

    def run(self) -> tuple[Event, Event]:
        self.perform("c", self.ends["c"].start())
        for _ in range(3000):
            if len(self.result) == 2:
                break
            moves = [end for end in "cs" if self.pipes[end] and not self.ends[end].done]
            if self.plan.get("cut") == self.deliveries and not self.closed:
                self.reset()
            elif moves:
                self.deliver(self.rng.choice(moves))
            elif self.work:
                self.do_work()
            else:
                self.wait()
        return self.result["c"], self.result["s"]

    def reset(self) -> None:
        self.closed = True
        for end in "cs":
            self.pipes[end].clear()
            if not self.ends[end].done:
                self.perform(end, self.ends[end].eof(self.now))

    def deliver(self, end: str) -> None:
        self.deliveries += 1
        data = self.pipes[end].popleft()
        at = self.rng.randint(1, len(data))
        if at < len(data):
            self.pipes[end].appendleft(data[at:])
        self.perform(end, self.ends[end].receive(data[:at], self.now))

    def perform(self, end: str, events: list[Event]) -> None:
        other = "s" if end == "c" else "c"
        for event in events:
            match event:
                case Send(data):
                    if not self.closed and self.plan.get("lose") != (end, clc.decode(data).kind_code):
                        self.pipes[other].append(data)
                case UseRdma() | UseTcp() | PlainPeer() | Failed():
                    self.result[end] = event
                    if isinstance(event, PlainPeer | Failed) and not self.closed:
                        self.reset()  # that end closes the connection
                case _:
                    self.work.append((end, event))

    def do_work(self) -> None:
        end, event = self.work.popleft()
        machine = self.ends[end]
        if machine.done:
            return
        self.now += 0.01
        fate = self.plan.get((end, type(event).__name__), "ok")
        if fate == "refuse":
            self.perform(end, machine.refuse(Code.NO_DEVICE, self.now))
        elif fate == "break":
            self.perform(end, machine.broken(Code.DEVICE_FAILURE, "QP", self.now))
        elif fate == "hang":
            pass
        elif isinstance(event, Proposed):
            self.perform(end, machine.ready(ACCEPT, self.now))
        elif isinstance(event, Accepted):
            self.perform(end, machine.ready(CONFIRM, self.now))
            self.link_up["c"] = True
        elif isinstance(event, Confirmed):
            self.link_up["s"] = True
            if not self.plan.get("link lost"):
                self.perform(end, machine.established(self.now))
                if not self.ends["c"].done:
                    self.perform("c", self.ends["c"].established(self.now))

    def wait(self) -> None:
        deadlines = [e.next_deadline() for e in self.ends.values() if not e.done]
        times = [d for d in deadlines if d is not None]
        assert times or not self.closed, "an end waits for ever on a closed connection"
        if not times:  # an engine that hangs: the user gives up, the connection closes
            self.reset()
            return
        self.now = max(self.now, min(times))
        for end in "cs":
            if not self.ends[end].done:
                self.perform(end, self.ends[end].on_timer(self.now))


def judge(net: Net, c: Event, s: Event) -> None:
    """What must hold whatever happened: the same transport, or a closed connection."""
    if isinstance(c, UseRdma) and isinstance(s, UseRdma):
        assert not net.closed
    elif isinstance(c, UseTcp) and isinstance(s, UseTcp):
        assert (c.peer is None) != (s.peer is None) or net.closed
        assert c.rest == s.rest == b""
    else:
        assert net.closed
        assert not (isinstance(c, UseTcp) and isinstance(s, UseRdma))
        assert not (isinstance(c, UseRdma) and isinstance(s, UseTcp))


FATES = ["ok", "refuse", "break", "hang"]


@pytest.mark.parametrize("fates", list(itertools.product(FATES, repeat=3)))
@pytest.mark.parametrize("link_lost", [False, True])
def test_every_failure_of_an_engine(fates: tuple[str, str, str], link_lost: bool) -> None:
    keys = [("s", "Proposed"), ("c", "Accepted"), ("s", "Confirmed")]
    for seed in range(5):
        plan: dict[Any, Any] = {"link lost": link_lost, **dict(zip(keys, fates, strict=True))}
        net = Net(plan, random.Random(seed))
        judge(net, *net.run())


@pytest.mark.parametrize(("end", "kind"), [("c", 1), ("s", 2), ("c", 3), ("s", 4), ("c", 4)])
@pytest.mark.parametrize("fate", ["ok", "refuse"])
def test_every_message_lost(end: str, kind: int, fate: str) -> None:
    for key in (("s", "Proposed"), ("c", "Accepted"), ("s", "Confirmed")):
        for seed in range(5):
            net = Net({"lose": (end, kind), key: fate}, random.Random(seed))
            c, s = net.run()
            if isinstance(c, UseTcp) != isinstance(s, UseTcp):
                # The end that misses the Decline closes the connection after its time.
                assert net.closed
            judge(net, c, s)


@pytest.mark.parametrize("cut", range(60))
def test_reset_at_every_place(cut: int) -> None:
    for seed in range(5):
        net = Net({"cut": cut}, random.Random(seed))
        judge(net, *net.run())


@pytest.mark.parametrize("seed", range(300))
def test_random_plans(seed: int) -> None:
    rng = random.Random(seed)
    plan: dict[Any, Any] = {
        ("s", "Proposed"): rng.choice(FATES + ["ok"] * 6), ("c", "Accepted"): rng.choice(FATES + ["ok"] * 6),
        ("s", "Confirmed"): rng.choice(FATES + ["ok"] * 6), "link lost": rng.random() < 0.2,
    }  # fmt: skip
    if rng.random() < 0.3:
        plan["cut"] = rng.randrange(20)
    net = Net(plan, rng)
    judge(net, *net.run())


def test_fuzz_both_ends() -> None:
    """Any bytes in any state: events, never an exception; and the state is an end or waits with a reason."""
    rng = random.Random(3)
    pieces = [m.encode() for m in (PROPOSAL, ACCEPT, CONFIRM, DECLINE)]
    for _ in range(1500):
        end: Any = client() if rng.random() < 0.5 else server()
        now = 0.0
        for _ in range(8):
            if end.done:
                break
            now += rng.random()
            roll = rng.random()
            if roll < 0.5:
                data = bytearray(rng.choice(pieces))
                if rng.random() < 0.5:
                    data[rng.randrange(len(data))] = rng.randrange(256)
                events = end.receive(bytes(data), now)
            elif roll < 0.7:
                events = end.receive(rng.randbytes(rng.randint(1, 40)), now)
            elif roll < 0.8:
                events = end.on_timer(now)
            else:
                events = []
            for event in events:
                if isinstance(event, Proposed):
                    events += end.ready(ACCEPT, now)
                elif isinstance(event, Accepted):
                    events += end.ready(CONFIRM, now)
                elif isinstance(event, Confirmed):
                    events += end.established(now)
            assert end.done == any(isinstance(e, UseRdma | UseTcp | PlainPeer | Failed) for e in events)
