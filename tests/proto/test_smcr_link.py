"""Control of a link to a Linux kernel: captured messages, each request, timers, and hostile peers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiordma.proto import llc, llcown
from aiordma.proto.codes import Code
from aiordma.proto.errors import LocalProtocolError
from aiordma.proto.llcframe import MESSAGE_BYTES
from aiordma.proto.smcr_link import (
    MAX_ANSWERS,
    MAX_KEYS,
    LinkActive,
    LinkEnd,
    LinkEnded,
    LinkState,
    LinkTimes,
    SmcrLink,
)

from .test_llc import KERNEL_ADD_LINK, KERNEL_REJECT

GID = bytes(10) + bytes.fromhex("ffff0a630101")
PEER_GID = bytes(10) + bytes.fromhex("ffff0a630102")
OWN = LinkEnd(gid=GID, qpn=0x11, mac=bytes.fromhex("065bc4820dc4"), uid=0x201)
PEER = LinkEnd(gid=PEER_GID, qpn=0x11, mac=bytes.fromhex("2a483dbe7f5a"))
# Linux 6.12, client and server, between themselves.
ASKS = bytes.fromhex("212c00032a483dbe7f5a" + "00" * 10 + "ffff0a630102000011010000010102ff" + "00" * 8)
CONFIRM_RKEY = bytes.fromhex("262c00000000000361ffff88800e2b0000") + bytes(27)
DELETE_RKEY = bytes.fromhex("292c00000100000000000361") + bytes(32)
TIMES = LinkTimes(confirm=5.0, idle=30.0, answer=5.0)


def client(active: bool = True) -> SmcrLink:
    link = SmcrLink("client", OWN, PEER, 0.0, TIMES)
    if active:
        assert link.receive(ASKS, 1.0) == [LinkActive()]
        assert link.next_message() is not None
    return link


def server(active: bool = True) -> SmcrLink:
    link = SmcrLink("server", PEER.changed(uid=0x101), OWN, 0.0, TIMES)
    if active:
        asks = link.next_message()
        assert asks is not None
        other = SmcrLink("client", OWN, PEER, 0.0, TIMES)
        other.receive(asks, 0.5)
        answer = other.next_message()
        assert answer is not None
        assert link.receive(answer, 1.0) == [LinkActive()]
    return link


def version_1(data: bytes) -> bytes:
    return bytes((data[0] & 15, 44, 0)) + data[3:]


def other_order(data: bytes) -> bytes:
    return bytes((data[0], data[2], data[1])) + data[3:]


# ---- Confirm Link


def test_a_link_becomes_active_in_both_roles() -> None:
    link = client()
    assert link.state is LinkState.ACTIVE
    asks = server(active=False).next_message()
    assert asks == ASKS[:-10] + b"\1" + ASKS[-9:]  # one link, where Linux says 2
    assert server().state is LinkState.ACTIVE


def test_the_answer_is_linux_own() -> None:
    """But for the number of links."""
    link = client(active=False)
    link.receive(ASKS, 1.0)
    kernel = bytes.fromhex("212c0083065bc4820dc4" + "00" * 10 + "ffff0a630101000011010000020102ff" + "00" * 8)
    assert link.next_message() == kernel[:-10] + b"\1" + kernel[-9:]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (ASKS[:28] + b"\x12" + ASKS[29:], Code.PROTOCOL_VIOLATION),
        (ASKS[:20] + bytes(6) + ASKS[26:], Code.PROTOCOL_VIOLATION),
        (ASKS[:3] + b"\0" + ASKS[4:], Code.EYE_CATCHERS_IN_RMBE),
        (ASKS[:3] + b"\x83" + ASKS[4:], Code.PROTOCOL_VIOLATION),
    ],
    ids=["queue pair", "GID", "eye catchers", "answer"],
)
def test_a_confirm_link_that_is_not_meant_ends_the_link(data: bytes, code: int) -> None:
    link = client(active=False)
    (end,) = link.receive(data, 1.0)
    assert isinstance(end, LinkEnded)
    assert end.code == code
    assert link.next_message() is None
    assert link.receive(ASKS, 1.0) == []


@pytest.mark.parametrize("make", [client, server])
def test_a_link_that_is_not_confirmed_in_time_ends(make: type) -> None:
    link = make(active=False)
    assert link.next_deadline() == 5.0
    assert link.on_timer(4.9) == []
    (end,) = link.on_timer(5.0)
    assert end.code == Code.TIMEOUT_CONFIRM_LINK
    assert link.next_deadline() is None


def test_a_repeated_request_is_answered_again() -> None:
    link = client()
    assert link.receive(ASKS, 2.0) == []
    assert link.next_message() is not None
    link = server()
    (end,) = link.receive(ASKS[:10] + bytes(10) + OWN.gid[10:] + ASKS[26:], 2.0)
    assert isinstance(end, LinkEnded)


# ---- requests of the kernel: all in both versions and byte orders


@pytest.mark.parametrize("change", [bytes, version_1, other_order])
def test_requests_are_answered_in_their_own_words(change: type) -> None:
    for link in client(), server():
        test = change(bytes.fromhex("272c0000") + bytes(range(40)))
        for request in test, change(CONFIRM_RKEY), change(DELETE_RKEY):
            assert link.receive(request, 2.0) == []
            assert link.next_message() == request[:3] + b"\x80" + request[4:]
        assert link.keys == frozenset()
        request = change(bytes.fromhex("252c0000") + bytes(20) + b"\1\0\0\0" + GID)
        assert link.receive(request, 2.0) == []
        assert link.next_message() == request[:3] + b"\x80" + bytes(40)
        assert link.next_message() is None


def test_keys_are_learned_and_forgotten() -> None:
    link = client()
    link.receive(CONFIRM_RKEY, 2.0)
    assert link.add_key(0x361, 0xFFFF88800E2B0000)
    assert link.add_key(0x361, 0x1000)
    assert link.keys == {(0x361, 0xFFFF88800E2B0000), (0x361, 0x1000)}
    link.receive(DELETE_RKEY, 2.0)
    assert link.keys == frozenset()


def test_a_key_that_is_not_known_is_reported() -> None:
    link = client()
    request = llc.in_version_2(llc.DeleteRKey(rkeys=(1, 2, 3)).encode())
    link.add_key(2, 0)
    link.receive(request, 2.0)
    answer = link.next_message()
    assert answer is not None
    expected = llc.DeleteRKey(rkeys=(1, 2, 3), response=True, negative=True, error_mask=0xA0)
    assert llc.decode(answer) == expected


def test_more_keys_than_an_answer_has_room_for() -> None:
    link = client()
    for key in range(1, 21):
        link.add_key(key, 0)
    keys = b"".join(key.to_bytes(4, "big") for key in range(1, 21))
    link.receive(b"\x29\x58\0\0" + b"\x14\0\0\0" + keys, 2.0)
    assert link.keys == frozenset()
    answer = link.next_message()
    assert answer is not None
    assert answer[:3] == b"\x29\x2c\0"  # in the order of the request
    assert llc.decode(answer) == llc.DeleteRKey(rkeys=tuple(range(1, 9)), response=True)


def test_an_answer_has_its_own_length_in_the_order_of_the_request() -> None:
    for length, head in ((b"\x3c\0", b"\x25\x2c\0"), (b"\0\x3c", b"\x25\0\x2c")):
        link = client()
        link.receive(b"\x25" + length + b"\0" + bytes(20) + b"\2\0\0\0" + bytes(32), 2.0)
        answer = link.next_message()
        assert answer is not None
        assert answer[:3] == head


def test_too_many_keys_are_refused_and_the_link_stays() -> None:
    link = client()
    for key in range(MAX_KEYS):
        assert link.add_key(key + 1, 0)
    link.receive(llc.ConfirmRKey(tokens=(llc.RToken(0, 1 << 20, 0),)).encode(), 2.0)
    answer = link.next_message()
    assert answer is not None
    assert llc.decode(answer).negative  # type: ignore[union-attr]
    assert len(link.keys) == MAX_KEYS
    assert link.state is LinkState.ACTIVE


def test_a_second_link_is_refused() -> None:
    """In the words of a Linux client without a second port."""
    link = client()
    assert link.receive(KERNEL_ADD_LINK, 2.0) == []
    assert link.next_message() == KERNEL_REJECT
    first = llc.AddLink(gid=GID, qpn=7, psn=8, link_num=2)
    link.receive(first.encode(), 2.0)
    answer = link.next_message()
    assert answer is not None
    assert llc.decode(answer) == first.changed(response=True, rejected=1)
    assert link.refused == 2


@pytest.mark.parametrize("kind", [0x2A, 0x0D, 0x0E, 0x0F, 0x03, 0x28, 0x1F, 0xFE])
def test_what_no_kernel_sends_ends_the_link(kind: int) -> None:
    data: dict[int, llc.LlcMessage] = {
        0x0D: llcown.Ticket(number=1, service=1, token=1, rkey=1, ring_addr=0, ring_bytes=16384),
        0x0E: llcown.TicketBack(service=1),
        0x0F: llcown.RingResize(token=1, stage=llcown.ResizeStage.OFFER),
    }
    message = data[kind].encode() if kind in data else bytes((kind, 44)) + bytes(42)
    (end,) = client().receive(message, 2.0)
    assert isinstance(end, LinkEnded)
    assert end.code == Code.PROTOCOL_VIOLATION


# ---- the end


def test_the_kernel_deletes_the_link() -> None:
    link = client()
    request = llc.DeleteLink(reason=0x30000, link_num=1, orderly=True)
    (end,) = link.receive(llc.in_version_2(request.encode()), 2.0)
    assert end == LinkEnded(Code.LINK_LOST, "the peer has deleted the link (reason 0x00030000)", True)
    answer = link.next_message()
    assert answer is not None
    assert llc.decode(answer) == request.changed(response=True)
    link = client()
    (end,) = link.receive(llc.DeleteLink(reason=0x10000, all_links=True).encode(), 2.0)
    assert isinstance(end, LinkEnded)
    assert not end.orderly
    assert link.next_message() is None  # the group has gone at the peer
    link = client()
    assert link.receive(llc.DeleteLink(reason=0x10000, link_num=2).encode(), 2.0) == []
    assert link.state is LinkState.ACTIVE


def test_this_end_deletes_the_link() -> None:
    link = client()
    link.receive(CONFIRM_RKEY, 2.0)
    link.close()
    link.close()
    last = link.next_message()
    assert last is not None
    assert last[0] == 0x24
    assert llc.decode(last) == llc.DeleteLink(reason=0x30000, all_links=True, orderly=True)
    assert link.next_message() is None
    assert link.next_deadline() is None


# ---- Test Link


def test_silence_is_probed_and_then_ends_the_link() -> None:
    link = client()
    assert link.next_deadline() == 31.0
    link.heard(10.0)
    assert link.next_deadline() == 40.0
    assert link.on_timer(40.0) == []
    probe = link.next_message()
    assert probe is not None
    assert (probe[0], len(probe)) == (0x27, 44)
    assert link.next_deadline() == 45.0
    assert link.receive(probe[:3] + b"\x80" + probe[4:], 41.0) == []
    assert link.next_deadline() == 71.0
    link.on_timer(71.0)
    assert link.next_message() != probe
    link.heard(72.0)  # CDC is a sign of life, too
    assert link.next_deadline() == 102.0
    link.on_timer(102.0)
    (end,) = link.on_timer(107.0)
    assert isinstance(end, LinkEnded)
    assert end.code == Code.LINK_LOST
    assert link.on_timer(200.0) == []


def test_without_an_idle_time_nothing_is_probed() -> None:
    link = SmcrLink("client", OWN, PEER, 0.0, LinkTimes(idle=0))
    link.receive(ASKS, 1.0)
    assert link.next_deadline() is None
    link.heard(2.0)
    assert link.next_deadline() is None


def test_a_role_that_does_not_exist() -> None:
    with pytest.raises(LocalProtocolError, match="role"):
        SmcrLink("peer", OWN, PEER, 0.0)


# ---- hostile peers


def test_answers_that_are_not_fetched_are_bounded() -> None:
    link = client()
    for _ in range(MAX_ANSWERS):
        assert link.receive(CONFIRM_RKEY, 2.0) == []
    (end,) = link.receive(CONFIRM_RKEY, 2.0)
    assert isinstance(end, LinkEnded)
    assert end.code == Code.PROTOCOL_VIOLATION
    assert link.next_message() is None


MESSAGES = [ASKS, CONFIRM_RKEY, DELETE_RKEY, KERNEL_ADD_LINK, KERNEL_REJECT]
MESSAGES += [bytes((0x20 | kind, 44, 0, flags)) + bytes(40) for kind in range(1, 10) for flags in (0, 0x80)]


def check(link: SmcrLink, events: list[object]) -> None:
    assert len(events) <= 1
    assert len(link.keys) <= MAX_KEYS
    ended = link.state is LinkState.ENDED
    assert ended == (link.next_deadline() is None)
    if events and isinstance(events[0], LinkEnded):
        assert ended
        assert events[0].code
        assert events[0].text


@given(st.lists(st.binary(max_size=100), max_size=8), st.booleans(), st.booleans())
def test_fuzz_bytes(parts: list[bytes], as_server: bool, active: bool) -> None:
    link = (server if as_server else client)(active)
    for part in parts:
        check(link, [*link.receive(part, 2.0)])


def test_fuzz_long_messages() -> None:
    """Of version 2, whose length fits and whose kind has one: what they hold is anything."""
    rng = random.Random(32)
    answered = ended = 0
    for _ in range(3000):
        link = (server if rng.random() < 0.5 else client)()
        size = rng.choice([45, 48, 72, 88, 100, 1000, llc.MAX_MESSAGE_BYTES, rng.randrange(44, 8193)])
        # Counts are small more often than not: others are refused at once.
        head = bytes((0x20 | rng.randrange(1, 10),)) + size.to_bytes(2, rng.choice(["little", "big"]))
        body = bytes((rng.choice([0, 0x80, 0x40, rng.randrange(256)]), rng.choice([1, 2, 8, 9, 255])))
        link.add_key(0x0361, 0)
        events = link.receive(head + body + rng.randbytes(size - 5), 2.0)
        check(link, [*events])
        ended += bool(events)
        while (message := link.next_message()) is not None:
            answered += 1
            assert len(message) == MESSAGE_BYTES
            llc.decode(message)
    assert answered > 100
    assert ended > 100


def test_fuzz_mutated_sequences() -> None:
    rng = random.Random(31)
    reached: set[str] = set()
    for _ in range(2000):
        link = (server if rng.random() < 0.5 else client)(rng.random() < 0.8)
        now = 1.0
        for _ in range(rng.randrange(1, 30)):
            data = bytearray(rng.choice(MESSAGES))
            for _ in range(rng.choice([0, 0, 1, 2])):
                data[rng.randrange(len(data))] = rng.randrange(256)
            now += rng.choice([0.0, 0.1, 20.0])
            events = [*link.on_timer(now)] or [*link.receive(bytes(data), now)]
            check(link, [*events])
            reached.update(type(event).__name__ for event in events)
            if rng.random() < 0.8:
                while (message := link.next_message()) is not None:
                    assert len(message) == 44
                    llc.decode(message)
        reached.add(link.state.name)
    assert reached == {"LinkActive", "LinkEnded", "ACTIVE", "ENDED", "ACTIVATING"}
