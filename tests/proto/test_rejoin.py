"""The negotiation of a stream that returns to RDMA, in virtual time."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiordma.proto.clc import Accept, Decline, Proposal
from aiordma.proto.codes import Code
from aiordma.proto.errors import LocalProtocolError, RemoteProtocolError
from aiordma.proto.events import Accepted, Confirmed, Failed, Proposed, Send, UseRdma, UseTcp
from aiordma.proto.handshake import State, Timeouts
from aiordma.proto.rejoin import Event, RejoinHandshake, Unanswered, Yielded

from .test_handshake import ACCEPT, CONFIRM, PROPOSAL

TIMES = Timeouts(negotiate=6.0, link=5.0)
HIGHER = PROPOSAL.changed(nonce=b"Z" * 16)
DECLINE = Decline(diagnosis=Code.OUT_OF_MEMORY).encode()


def asked(proposal: Proposal = PROPOSAL) -> RejoinHandshake:
    handshake = RejoinHandshake(TIMES, 0.0, proposal)
    assert handshake.start() == [Send(proposal.encode())]
    return handshake


def answering() -> RejoinHandshake:
    handshake = RejoinHandshake(TIMES, 0.0)
    assert handshake.receive(PROPOSAL.encode(), 0.0) == [Proposed(PROPOSAL)]
    return handshake


def test_both_ends_agree() -> None:
    client, server = asked(), answering()
    assert server.ready(ACCEPT, 0.0) == [Send(ACCEPT.encode())]
    assert client.receive(ACCEPT.encode(), 1.0) == [Accepted(ACCEPT)]
    assert client.ready(CONFIRM, 1.0) == [Send(CONFIRM.encode())]
    assert client.established(1.0) == [UseRdma()]
    assert server.receive(CONFIRM.encode(), 2.0) == [Confirmed(CONFIRM)]
    assert server.established(2.0) == [UseRdma()]
    assert client.is_client
    assert not server.is_client
    assert client.state is server.state is State.RDMA
    assert client.next_deadline() is server.next_deadline() is None


def test_of_two_that_ask_at_once_the_higher_nonce_is_the_client() -> None:
    low, high = asked(), asked(HIGHER)
    assert high.receive(PROPOSAL.encode(), 0.0) == []
    assert low.receive(HIGHER.encode(), 0.0) == [Yielded(), Proposed(HIGHER)]
    assert high.is_client
    assert not low.is_client
    assert low.ready(ACCEPT, 0.0) == [Send(ACCEPT.encode())]
    assert high.receive(ACCEPT.encode(), 0.0) == [Accepted(ACCEPT)]


def test_a_decline_counts_in_every_state() -> None:
    """Even where a first negotiation would be over: nothing but this frees the other end's rings."""
    states = [asked(), answering(), answering(), asked(), asked()]
    states[2].ready(ACCEPT, 0.0)
    states[3].receive(ACCEPT.encode(), 0.0)
    states[4].receive(ACCEPT.encode(), 0.0)
    states[4].ready(CONFIRM, 0.0)
    states[4].established(0.0)
    assert states[4].state is State.RDMA
    for handshake in states:
        assert handshake.receive(DECLINE, 0.0) == [UseTcp(Code.OUT_OF_MEMORY, Code.OUT_OF_MEMORY, b"")]
        assert handshake.state is State.TCP
        assert handshake.receive(ACCEPT.encode(), 0.0) == []
        assert handshake.refuse(Code.DEVICE_FAILURE, 0.0) == []


def test_this_end_gives_up_after_it_has_agreed() -> None:
    client = asked()
    client.receive(ACCEPT.encode(), 0.0)
    client.ready(CONFIRM, 0.0)
    events = client.refuse(Code.DEVICE_FAILURE, 0.0)
    assert events == [
        Send(Decline(diagnosis=Code.DEVICE_FAILURE).encode()),
        UseTcp(Code.DEVICE_FAILURE, None, b""),
    ]


def test_a_proposal_stands_until_the_peer_reads_it() -> None:
    client = asked()
    assert client.next_deadline() == 6.0
    assert client.on_timer(5.9) == []
    told = [client.unanswered]
    assert client.on_timer(6.0) == [Unanswered()]
    told.append(client.unanswered)
    assert client.next_deadline() is None
    assert client.on_timer(1e9) == []
    assert client.receive(ACCEPT.encode(), 1e9) == [Accepted(ACCEPT)]
    told.append(client.unanswered)
    assert told == [False, True, False]
    assert client.ready(CONFIRM, 1e9) == [Send(CONFIRM.encode())]
    assert client.next_deadline() == 1e9 + 11.0


def test_a_standing_proposal_yields_like_a_new_one() -> None:
    client = asked()
    client.on_timer(6.0)
    assert client.receive(HIGHER.encode(), 7.0) == [Yielded(), Proposed(HIGHER)]
    assert not client.unanswered


def test_silence_is_declined() -> None:
    """Of a peer that has begun to answer."""
    server = answering()
    server.ready(ACCEPT, 0.0)
    assert server.next_deadline() == 6.0
    assert server.on_timer(5.9) == []
    declined, failed = server.on_timer(6.0)
    assert declined == Send(Decline(diagnosis=Code.OUT_OF_SYNC).encode())
    assert isinstance(failed, Failed)
    assert failed.code == Code.OUT_OF_SYNC
    assert server.next_deadline() is None


def test_an_unknown_link_is_asked_about_once() -> None:
    client, server = asked(), answering()
    old = ACCEPT.changed(first_contact=False, qpn=5, proof=bytes(16))
    assert isinstance(old, Accept)
    again = HIGHER.changed(unknown_qpn=5)
    server.ready(old, 0.0)
    client.receive(old.encode(), 0.0)
    before = client.may_ask_again
    assert client.again(again, 0.0) == [Send(again.encode())]
    assert (before, client.may_ask_again) == (True, False)
    assert server.receive(again.encode(), 0.0) == [Proposed(again)]
    assert not server.may_ask_again
    with pytest.raises(LocalProtocolError):
        server.again(again, 0.0)


def test_a_message_out_of_turn_fails_and_is_declined() -> None:
    client = asked()
    declined, failed = client.receive(CONFIRM.encode(), 0.0)
    assert declined == Send(Decline(diagnosis=Code.PROTOCOL_VIOLATION).encode())
    assert isinstance(failed, Failed)


@given(st.binary(max_size=60))
def test_what_is_no_message_is_the_peers_fault(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        asked().receive(data, 0.0)


@given(
    st.lists(st.sampled_from(["deliver 0", "deliver 1", "work 0", "work 1", "fail 0", "fail 1"]), max_size=25)
)
def test_two_ends_that_ask_at_once_never_disagree_for_long(program: list[str]) -> None:
    """Whatever happens in which order: when nothing is under way, both ends are on RDMA, or both on TCP."""
    ends = [asked(PROPOSAL), asked(HIGHER)]
    wires = [deque([HIGHER.encode()]), deque([PROPOSAL.encode()])]  # what each end has still to read
    work: list[deque[Event]] = [deque(), deque()]

    def take(who: int, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Send):
                wires[1 - who].append(event.data)
            elif isinstance(event, Proposed | Accepted | Confirmed):
                work[who].append(event)

    def do(what: str, who: int) -> None:
        if what == "deliver" and wires[who]:
            take(who, ends[who].receive(wires[who].popleft(), 0.0))
        elif what == "fail":
            take(who, ends[who].refuse(Code.OUT_OF_MEMORY, 0.0))
        elif what == "work" and work[who]:
            event = work[who].popleft()
            if ends[who].state is State.TCP:
                return
            if isinstance(event, Proposed):
                take(who, ends[who].ready(ACCEPT, 0.0))
            else:
                if isinstance(event, Accepted):
                    take(who, ends[who].ready(CONFIRM, 0.0))
                take(who, ends[who].established(0.0))

    for operation in program:
        what, end = operation.split()
        do(what, int(end))
    while any(wires) or any(work):
        for who in (0, 1):
            do("deliver", who)
            do("work", who)
    assert ends[0].state is ends[1].state
    assert ends[0].state in (State.RDMA, State.TCP)
