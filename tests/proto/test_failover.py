"""Leaving RDMA, in virtual time: whatever breaks when, no byte is lost or read twice."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aiordma.proto.cdc import StateFlag
from aiordma.proto.codes import Code
from aiordma.proto.errors import LocalProtocolError, RemoteProtocolError
from aiordma.proto.failover import (
    MESSAGE_BYTES,
    Agreed,
    Broken,
    CursorExchange,
    Event,
    Leave,
    Ledger,
    Quiesce,
    Refuse,
    Send,
    State,
    decode,
)

LEDGER = Ledger(sent=100, placed=60, freed=40, arrived=30, announced=20, ring=64, flags=0, peer_flags=0)
LEAVE = Leave(token=7, sent=50, placed=40, arrived=80)


def waiting(ledger: Ledger = LEDGER) -> CursorExchange:
    crossing = CursorExchange(7, 9, 10.0)
    assert crossing.leave(Code.LINK_LOST, 0.0) == [Quiesce()]
    (said,) = crossing.quiesced(ledger)
    assert isinstance(said, Send)
    leave = decode(said.data)
    assert isinstance(leave, Leave)
    assert (leave.token, leave.sent, leave.placed, leave.arrived) == (
        9,
        ledger.sent,
        ledger.placed,
        ledger.arrived,
    )
    return crossing


def test_messages_survive_their_encoding() -> None:
    for message in (LEAVE, LEAVE.changed(flags=0xC0, code=0x0A1D0010), Refuse(3, 4)):
        data = message.encode()
        assert len(data) == MESSAGE_BYTES
        assert decode(data) == message


def test_the_first_byte_on_tcp() -> None:
    (agreed,) = waiting().receive(LEAVE.encode(), 1.0)
    assert agreed == Agreed(send_from=80, read_until=40, peer_flags=0, code=Code.LINK_LOST, by_peer=False)
    # What is certain here goes before what the peer had not heard of.
    (agreed,) = waiting(LEDGER.changed(placed=100)).receive(LEAVE.encode(), 1.0)
    assert isinstance(agreed, Agreed)
    assert agreed.send_from == 100


def test_the_peer_leaves_first() -> None:
    crossing = CursorExchange(7, 9, 10.0)
    message = LEAVE.changed(code=Code.SWITCHED).encode()
    for at in range(MESSAGE_BYTES - 1):
        assert crossing.receive(message[at : at + 1], 0.0) == []
    assert crossing.receive(message[-1:], 0.0) == [Quiesce()]
    assert crossing.missing == 0
    said, agreed = crossing.quiesced(LEDGER)
    assert isinstance(said, Send)
    assert isinstance(agreed, Agreed)
    assert agreed.by_peer
    assert agreed.code == Code.SWITCHED
    with pytest.raises(LocalProtocolError):
        crossing.receive(b"x", 0.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"arrived": 101}, "cannot have arrived"),
        ({"arrived": 39}, "cannot have arrived"),
        ({"sent": 29, "placed": 10}, "cannot have sent"),
        ({"sent": 20 + 64 + 1}, "cannot have sent"),
        ({"token": 8}, "another connection"),
    ],
)
def test_cursors_that_cannot_be(change: dict[str, int], words: str) -> None:
    (broken,) = waiting().receive(LEAVE.changed(**change).encode(), 1.0)
    assert isinstance(broken, Broken)
    assert broken.fault
    assert words in broken.reason


def test_an_end_cannot_be_taken_back() -> None:
    done = LEDGER.changed(peer_flags=int(StateFlag.SENDING_DONE))
    for leave in (LEAVE, LEAVE.changed(flags=0x80)):
        (broken,) = waiting(done).receive(leave.encode(), 1.0)
        assert isinstance(broken, Broken)
        assert broken.fault
    (agreed,) = waiting(done).receive(LEAVE.changed(flags=0x80, sent=30, placed=0).encode(), 1.0)
    assert isinstance(agreed, Agreed)


@pytest.mark.parametrize(
    "data",
    [
        bytes(MESSAGE_BYTES),
        b"X" + LEAVE.encode()[1:],
        LEAVE.encode()[:-1] + b"X",
        LEAVE.encode()[:4] + b"\2" + LEAVE.encode()[5:],
        LEAVE.encode()[:5] + b"\3" + LEAVE.encode()[6:],
        LEAVE.encode()[:7] + b"\1" + LEAVE.encode()[8:],
        LEAVE.changed(flags=0x40).encode(),
        LEAVE.changed(flags=0x20).encode(),
        LEAVE.changed(placed=51).encode(),
        Refuse(1, 1).encode()[:16] + bytes(7) + b"\1" + Refuse(1, 1).encode()[24:],
        LEAVE.encode()[:-1],
    ],
)
def test_what_is_no_message(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(data)
    if len(data) == MESSAGE_BYTES:
        crossing = waiting()
        (broken,) = crossing.receive(data, 1.0)
        assert isinstance(broken, Broken)
        assert broken.fault
        assert crossing.state is State.BROKEN


@given(st.binary(max_size=MESSAGE_BYTES))
def test_garbage(data: bytes) -> None:
    crossing = CursorExchange(7, 9, 10.0)
    events = crossing.receive(data, 0.0)
    assert all(isinstance(event, Broken) and event.fault for event in events)


@given(st.integers(0, MESSAGE_BYTES - 1), st.integers(0, 255))
def test_one_byte_changed_never_agrees_on_more_than_there_is(at: int, value: int) -> None:
    data = bytearray(LEAVE.encode())
    data[at] = value
    for event in waiting().receive(bytes(data), 1.0):
        if isinstance(event, Agreed):
            assert 60 <= event.send_from <= 100
            assert 30 <= event.read_until <= 84


def test_refusal_silence_and_the_end() -> None:
    (broken,) = waiting().receive(Refuse(7, Code.FAILOVER_OFF).encode(), 1.0)
    assert isinstance(broken, Broken)
    assert not broken.fault
    assert "switched off" in broken.reason
    crossing = waiting()
    assert crossing.on_timer(9.9) == []
    (broken,) = crossing.on_timer(10.0)
    assert isinstance(broken, Broken)
    assert "no answer within 10 s" in broken.reason
    assert crossing.eof("gone") == []
    (broken,) = waiting().eof("gone")
    assert broken == Broken("gone")


def test_switched_off() -> None:
    crossing = CursorExchange(7, 9, 0.0)
    (broken,) = crossing.leave(Code.LINK_LOST, 0.0)
    assert isinstance(broken, Broken)
    said, broken = CursorExchange(7, 9, 0.0).receive(LEAVE.encode(), 0.0)
    assert isinstance(said, Send)
    assert decode(said.data) == Refuse(9, Code.FAILOVER_OFF)
    assert isinstance(broken, Broken)


class End:
    """One end of a stream in the model: its rings and its crossing. Byte number n of a direction is n."""

    def __init__(self, token: int, peer_token: int, ring: int, *, inline: bool) -> None:
        self.crossing = CursorExchange(token, peer_token, 10.0)
        self.ring = ring
        self.inline = inline  # WRITEs are placed while they are posted; else nobody knows until they are told
        self.sent = self.freed = 0  # what we know
        self.arrived = self.read = self.told = 0
        self.memory = 0  # how far the peer's WRITEs really have come in our ring
        self.flags = self.peer_flags = 0
        self.broken_link = False
        self.stopped = False
        self.agreed: Agreed | None = None
        self.over: Broken | None = None
        self.ledger: Ledger | None = None


class Streams(RuleBasedStateMachine):
    """Two ends, a link that can break for each of them at any time, and a TCP connection."""

    @initialize(ring=st.sampled_from([1, 8, 64]), inline=st.booleans())
    def begin(self, ring: int, inline: bool) -> None:
        self.now = 0.0
        self.ends = [End(1, 2, ring, inline=inline), End(2, 1, ring, inline=inline)]
        self.link: list[deque[tuple[int, int, int]]] = [deque(), deque()]  # to each end: sent, read, flags
        self.tcp: list[bytearray] = [bytearray(), bytearray()]  # to each end
        self.tcp_broken = False

    def peer(self, who: int) -> End:
        return self.ends[1 - who]

    def run_events(self, who: int, events: list[Event]) -> None:
        end = self.ends[who]
        for event in events:
            if isinstance(event, Quiesce):
                end.stopped = True
            elif isinstance(event, Send):
                if not self.tcp_broken:
                    self.tcp[1 - who] += event.data
            elif isinstance(event, Agreed):
                end.agreed = event
            else:
                end.over = event

    # -- life on RDMA

    @rule(who=st.integers(0, 1), n=st.integers(1, 20), lands=st.booleans())
    def send(self, who: int, n: int, lands: bool) -> None:
        end, peer = self.ends[who], self.peer(who)
        n = min(n, peer.ring - (end.sent - end.freed))
        if end.stopped or end.flags or n <= 0:
            return
        start, end.sent = end.sent, end.sent + n
        # Once a WRITE has not arrived, none behind it does: the QP fails.
        if peer.memory == start and not end.broken_link and (lands or not peer.broken_link):
            peer.memory = end.sent
        if peer.memory == end.sent and not end.broken_link and not peer.broken_link:
            self.link[1 - who].append((end.sent, end.read, end.flags))
            end.told = end.read

    @rule(who=st.integers(0, 1))
    def finish(self, who: int) -> None:
        end = self.ends[who]
        if not end.stopped:
            end.flags |= 0x80
            if not end.broken_link and not self.peer(who).broken_link and self.peer(who).memory == end.sent:
                self.link[1 - who].append((end.sent, end.read, end.flags))
                end.told = end.read

    @rule(who=st.integers(0, 1))
    def hear(self, who: int) -> None:
        end = self.ends[who]
        if self.link[who] and not end.broken_link and end.ledger is None:
            end.arrived, end.freed, end.peer_flags = self.link[who].popleft()

    @rule(who=st.integers(0, 1))
    def read(self, who: int) -> None:
        end = self.ends[who]
        end.read = max(end.read, end.arrived)
        if not end.stopped and not end.broken_link and not self.peer(who).broken_link:
            if self.peer(who).memory == end.sent:
                self.link[1 - who].append((end.sent, end.read, end.flags))
                end.told = end.read

    # -- it breaks

    @rule(who=st.integers(0, 1))
    def link_breaks(self, who: int) -> None:
        end = self.ends[who]
        end.broken_link = True
        self.run_events(who, end.crossing.leave(Code.LINK_LOST, self.now))

    @rule(who=st.integers(0, 1))
    def asked_to_leave(self, who: int) -> None:
        self.run_events(who, self.ends[who].crossing.leave(Code.SWITCHED, self.now))

    @precondition(lambda self: any(e.crossing.state is State.QUIESCING for e in self.ends))
    @rule(who=st.integers(0, 1))
    def settles(self, who: int) -> None:
        end, peer = self.ends[who], self.peer(who)
        if end.crossing.state is not State.QUIESCING:
            return
        if not end.broken_link and peer.memory != end.sent:
            return  # what was posted has not completed; the link will break for this
        placed = peer.memory if end.inline or not end.broken_link else end.freed
        end.ledger = Ledger(
            end.sent, placed, end.freed, end.arrived, end.told, end.ring, end.flags, end.peer_flags
        )
        self.run_events(who, end.crossing.quiesced(end.ledger))

    @rule(who=st.integers(0, 1), n=st.integers(1, MESSAGE_BYTES))
    def tcp_delivers(self, who: int, n: int) -> None:
        end = self.ends[who]
        n = min(n, end.crossing.missing)
        data = bytes(self.tcp[who][:n])
        if data:
            del self.tcp[who][:n]
            self.run_events(who, end.crossing.receive(data, self.now))

    @rule()
    def tcp_breaks(self) -> None:
        self.tcp_broken = True
        for who, end in enumerate(self.ends):
            self.tcp[who].clear()
            self.run_events(who, end.crossing.eof("gone"))

    @rule(seconds=st.floats(0.1, 6))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for who, end in enumerate(self.ends):
            self.run_events(who, end.crossing.on_timer(self.now))

    # -- what must hold

    @invariant()
    def nobody_is_accused(self) -> None:
        for end in getattr(self, "ends", []):
            assert end.over is None or not end.over.fault, end.over

    @invariant()
    def both_mean_the_same_byte(self) -> None:
        for who, end in enumerate(getattr(self, "ends", [])):
            peer = self.peer(who)
            if end.agreed is None:
                continue
            assert end.ledger is not None
            assert end.ledger.placed <= end.agreed.send_from <= end.sent
            # What is read from the ring lies there.
            assert end.arrived <= end.agreed.read_until <= end.memory
            if peer.agreed is not None:
                assert end.agreed.send_from == peer.agreed.read_until
                assert end.agreed.read_until == peer.agreed.send_from
                assert peer.agreed.peer_flags == end.flags

    def teardown(self) -> None:
        """When nothing more breaks and nobody has given up, both get there."""
        if not hasattr(self, "ends") or self.tcp_broken or any(end.over for end in self.ends):
            return
        if all(end.crossing.state is State.ON_RDMA for end in self.ends):
            return
        for _ in range(6):
            for who in (0, 1):
                if self.ends[who].sent != self.peer(who).memory:
                    self.link_breaks(who)
                self.tcp_delivers(who, MESSAGE_BYTES)
                self.settles(who)
        assert all(end.agreed is not None for end in self.ends)
        self.both_mean_the_same_byte()


Streams.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestStreams = Streams.TestCase


def test_a_stopped_peer_whose_host_answers_is_awaited_longer() -> None:
    exchange = CursorExchange(1, 2, 10.0, 60.0)
    exchange.leave(Code.LINK_LOST, 100.0)
    exchange.quiesced(LEDGER)
    assert exchange.on_timer(110.0, host_answers=True) == []
    assert exchange.deadline == 120.0
    assert exchange.on_timer(119.0, host_answers=False) == []
    assert exchange.on_timer(155.0, host_answers=True) == []
    assert exchange.deadline == 160.0
    [broken] = exchange.on_timer(160.0, host_answers=True)
    assert isinstance(broken, Broken)
    assert "process has not run for 60 s" in broken.reason


def test_a_host_that_does_not_answer_is_not_awaited_longer() -> None:
    exchange = CursorExchange(1, 2, 10.0, 60.0)
    exchange.leave(Code.LINK_LOST, 100.0)
    exchange.quiesced(LEDGER)
    [broken] = exchange.on_timer(110.0)
    assert isinstance(broken, Broken)
    assert "no answer within 10 s" in broken.reason
