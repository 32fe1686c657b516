"""Connections to a Linux kernel's SMC-R: captures, two machines against each other, and hostile peers."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiordma.proto import clc, smcr
from aiordma.proto.codes import Code
from aiordma.proto.errors import LocalProtocolError, RemoteProtocolError
from aiordma.proto.events import Confirmed, Failed, PlainPeer, Send, UseRdma, UseTcp
from aiordma.proto.handshake import State, Timeouts
from aiordma.proto.smcr import MakeReady, Port, Queue, Ring, SmcrClient, SmcrEvent, SmcrGroups, SmcrServer
from aiordma.proto.smcr_link import MAX_KEYS, LinkActive, LinkState

from .test_clc import KERNEL_ACCEPT, KERNEL_CONFIRM, KERNEL_PROPOSAL, resized

EID = b"AIORDMA-TEST-EID".ljust(32)
GID_1, GID_2 = (bytes(10) + bytes.fromhex(f"ffff0a63010{n}") for n in (1, 2))
TIMES = Timeouts()

# A user-space client and Linux 6.12 as the server, which took every message: what the machines have to send.
USER_PROPOSAL = bytes.fromhex(
    "e2d4c3d901009c22dd085ec4a7577c39" + "00" * 10 + "ffff0a6301015ec4a7577c39" + "00" * 12 + "001c"
    + "00" * 28 + "0100001000000000" + "00" * 10 + "ffff0a630101ff010000" + "00" * 12
    + "41494f52444d412d544553542d454944" + "20" * 16 + "e2d4c3d9"
)  # fmt: skip
SERVERS_ACCEPT = bytes.fromhex(
    "e2d4c3d90200a0284ad15ec4a7577c39" + "00" * 10 + "ffff0a63010286e58164b9da0000110000032001000000012300"
    "ffff88800e2b00000072758941494f52444d412d544553542d454944" + "20" * 16 + "00" * 8
    + "80210000286e6f6e6529" + "20" * 26 + "ff010001" + "00" * 12 + "e2d4c3d9"
)  # fmt: skip
USER_CONFIRM = bytes.fromhex(
    "e2d4c3d90300b428dd085ec4a7577c39" + "00" * 10 + "ffff0a6301015ec4a7577c39000011000002d3010057fccc2300"
    "000000003200200000602b4f41494f52444d412d544553542d454944" + "20" * 16 + "00" * 8
    + "8021000061696f72646d61" + "20" * 25 + "ff010000" + "00" * 12 + "01000000" + "00" * 10
    + "ffff0a630101e2d4c3d9"
)  # fmt: skip
ASKS_LINK = bytes.fromhex("212c000386e58164b9da" + "00" * 10 + "ffff0a630102000011010000010101ff" + "00" * 8)
CONFIRMS_LINK = bytes.fromhex(
    "212c00835ec4a7577c39" + "00" * 10 + "ffff0a63010100001101293760a401ff" + "00" * 8
)


def port(number: int = 1, **changes: Any) -> Port:
    mac = bytes.fromhex("5ec4a7577c39") if number == 1 else bytes.fromhex("86e58164b9da")
    values: dict[str, Any] = {
        "gid": GID_1 if number == 1 else GID_2,
        "mac": mac,
        "system_id": bytes.fromhex("dd08" if number == 1 else "4ad1") + mac,
        "mtu": 3,
        "eids": (EID,),
        "hostname": "aiordma",
    }
    return Port(**(values | changes))


def ring(token: int = 0x57FCCC, **changes: Any) -> Ring:
    return Ring(**({"rkey": 0x2D3, "rmb_addr": 0x32002000, "ring_bytes": 65536, "token": token} | changes))


QUEUE = Queue(0x11, 0x602B4F, 0x293760A4)


def sent(events: list[SmcrEvent]) -> bytes:
    return b"".join(event.data for event in events if isinstance(event, Send))


def client(groups: SmcrGroups | None = None, **changes: Any) -> SmcrClient:
    made = SmcrClient(port(**changes), groups or SmcrGroups(), TIMES, 0.0)
    made.start()
    return made


def server(groups: SmcrGroups | None = None, **changes: Any) -> SmcrServer:
    return SmcrServer(port(2, **changes), groups or SmcrGroups(), TIMES, 0.0)


# ---- the captures


def test_the_clients_messages_are_those_that_a_kernel_took() -> None:
    groups = SmcrGroups()
    c = SmcrClient(port(), groups, TIMES, 0.0)
    assert sent(c.start()) == USER_PROPOSAL
    (ask,) = c.receive(SERVERS_ACCEPT, 0.1)
    assert isinstance(ask, MakeReady)
    assert ask.group is None
    assert ask.peer == clc.decode(SERVERS_ACCEPT)
    assert sent(c.ready(ring(), QUEUE, 0.2)) == USER_CONFIRM
    assert c.group is not None
    assert c.group.link.next_message() is None  # the server asks
    assert c.group.link.receive(ASKS_LINK, 0.3) == [LinkActive()]
    assert c.group.link.next_message() == CONFIRMS_LINK
    assert c.active(0.4) == [UseRdma()]
    assert c.group.link.keys == {(0x320, 0xFFFF88800E2B0000)}


@pytest.mark.parametrize("release", [0, 1])
def test_a_kernel_as_the_client(release: int) -> None:
    groups = SmcrGroups()
    s = server(groups)
    data = KERNEL_PROPOSAL
    if not release:  # Linux 6.1
        data = data[:83] + b"\0" + data[84:104] + bytes(16) + data[120:]
    (ask,) = s.receive(data, 0.1)
    assert isinstance(ask, MakeReady)
    answer = sent(s.ready(ring(), QUEUE, 0.2))
    assert len(answer) == 160
    assert (answer[104], answer[105]) == (0x80, 0x20 | release)
    assert answer[140:156] == (b"\xff\x01".ljust(16, b"\0") if release else bytes(16))
    accept = clc.decode(answer)
    assert isinstance(accept, clc.Accept)
    assert (accept.eid, accept.first_contact, accept.max_links) == (EID, True, 1)
    confirm = bytearray(KERNEL_CONFIRM)  # to an Accept of two links
    confirm[105] = 0x20 | release
    confirm[140:144] = b"\xff\1\0\0" if release else bytes(4)
    (agreed,) = s.receive(bytes(confirm), 0.3)
    assert agreed == Confirmed(clc.decode(bytes(confirm)))  # type: ignore[arg-type]
    assert s.connected(0.4) == []
    assert s.group is not None
    asks = s.group.link.next_message()
    assert asks is not None
    assert asks[:4] == bytes.fromhex("212c0003")
    answer = bytes.fromhex("212c0083065bc4820dc4") + bytes(10) + bytes.fromhex("ffff0a63010100001101000002")
    assert s.group.link.receive(answer + bytes.fromhex("0102ff") + bytes(8), 0.5) == [LinkActive()]
    assert s.active(0.6) == [UseRdma()]
    assert groups.for_client_at(GID_1) is s.group


# ---- what the second answer has to repeat, and other refusals


def test_a_confirm_that_differs_is_declined_with_linux_codes() -> None:
    accept = clc.decode(KERNEL_ACCEPT)
    assert isinstance(accept, clc.Accept)
    confirm = clc.decode(KERNEL_CONFIRM)
    assert isinstance(confirm, clc.Confirm)
    smcr.check_confirm(confirm, accept)
    changes: dict[str, Any]
    for changes, code in (
        ({"release": 0}, Code.RELEASE_MISMATCH),
        ({"max_conns": 100}, Code.MAX_CONNS_MISMATCH),
        ({"max_links": 1}, Code.MAX_LINKS_MISMATCH),
        ({"eid": bytes(32)}, Code.NO_COMMON_EID),
        ({"direct": False}, Code.GATEWAY_MISMATCH),
        ({"first_contact": False, "gids": ()}, Code.OUT_OF_SYNC),
        ({"rmb_addr": (1 << 64) - 65535}, Code.PROTOCOL_VIOLATION),
        ({"rmb_addr": (1 << 64) - 1, "rmbe_index": 255}, Code.PROTOCOL_VIOLATION),
        ({"qpn": 0}, Code.PROTOCOL_VIOLATION),
        ({"gid": bytes(16)}, Code.PROTOCOL_VIOLATION),
    ):
        with pytest.raises(RemoteProtocolError) as caught:
            smcr.check_confirm(confirm.changed(**changes), accept)
        assert caught.value.code == code


def test_an_accept_that_was_not_offered_is_declined() -> None:
    accept = clc.decode(SERVERS_ACCEPT)
    for changes, code in (
        ({"eid": b"OTHER".ljust(32)}, Code.NO_COMMON_EID),
        ({"release": 2}, Code.RELEASE_MISMATCH),
        ({"max_conns": 15}, Code.MAX_CONNS_MISMATCH),
        ({"max_links": 2}, Code.MAX_LINKS_MISMATCH),
        ({"direct": False}, Code.GATEWAY_MISMATCH),
        ({"first_contact": False}, Code.LINK_NOT_FOUND),
    ):
        c = client()
        decline, end = c.receive(accept.changed(**changes).encode(), 0.1)  # type: ignore[union-attr]
        assert isinstance(decline, Send)
        assert len(decline.data) == 44
        assert isinstance(end, UseTcp)
        assert end.code == clc.decode(decline.data).diagnosis == code  # type: ignore[union-attr]
        assert c.done


def test_a_server_without_the_clients_id_declines() -> None:
    for changes in {"eids": (b"OTHER".ljust(32),)}, {"eids": ()}:
        decline, end = server(**changes).receive(KERNEL_PROPOSAL, 0.1)
        assert isinstance(decline, Send)
        assert isinstance(end, UseTcp)
        assert end.code == Code.NO_COMMON_EID
    (ask,) = server(eids=(), any_eid=True).receive(KERNEL_PROPOSAL, 0.1)
    assert isinstance(ask, MakeReady)
    first = clc.EYE_CATCHER + bytes.fromhex("01003410") + bytes(40) + clc.EYE_CATCHER
    decline, end = server().receive(first, 0.1)
    assert isinstance(decline, Send)
    assert (len(decline.data), decline.data[7]) == (28, 0x10)
    assert isinstance(end, UseTcp)
    assert end.code == Code.NO_SMC_V2_EXTENSION


@pytest.mark.parametrize("release", [0, 1])
def test_a_client_that_allows_too_little_is_declined_with_linux_codes(release: int) -> None:
    """With none at all the server's answer could not be made. Release 0 has no such limits."""
    at = USER_PROPOSAL.rindex(b"\xff\1")
    for conns, links, code in (
        (0, 1, Code.MAX_CONNS_MISMATCH),
        (15, 1, Code.MAX_CONNS_MISMATCH),
        (16, 0, Code.MAX_LINKS_MISMATCH),
        (16, 1, None),
    ):
        data = bytearray(USER_PROPOSAL)
        data[at : at + 2] = conns, links
        data[at - 21] = release << 4
        s = server()
        events = s.receive(bytes(data), 0.1)
        if code is None or not release:
            (ask,) = events
            assert isinstance(ask, MakeReady)
            (answer,) = s.ready(ring(), QUEUE, 0.2)
            assert isinstance(answer, Send)
            accept = clc.decode(answer.data)
            assert isinstance(accept, clc.Accept)
            assert accept.release == release
        else:
            decline, end = events
            assert isinstance(decline, Send)
            assert isinstance(end, UseTcp)
            assert end.code == clc.decode(decline.data).diagnosis == code  # type: ignore[union-attr]


def test_a_kernel_client_whose_link_does_not_come_up_declines_after_its_confirm() -> None:
    """Its stream follows on the same TCP connection."""
    groups = SmcrGroups()
    s = server(groups)
    s.receive(KERNEL_PROPOSAL, 0.1)
    s.ready(ring(), QUEUE, 0.2)
    confirm = KERNEL_CONFIRM[:141] + b"\1" + KERNEL_CONFIRM[142:]
    assert isinstance(s.receive(confirm, 0.3)[0], Confirmed)
    s.connected(0.3)
    assert groups.count == 1
    decline = clc.Decline(diagnosis=Code.TIMEOUT_CONFIRM_LINK).encode()
    assert s.receive(decline + b"GET", 5.0) == [
        UseTcp(Code.TIMEOUT_CONFIRM_LINK, Code.TIMEOUT_CONFIRM_LINK, b"GET")
    ]
    assert groups.count == 0


def test_a_kernel_server_declines_after_the_confirm() -> None:
    groups = SmcrGroups()
    c = client(groups)
    c.receive(SERVERS_ACCEPT, 0.1)
    c.ready(ring(), QUEUE, 0.2)
    decline = clc.Decline(diagnosis=Code.TIMEOUT_CONFIRM_LINK).encode()
    (end,) = c.receive(decline + b"A 220 hello", 4.0)  # "A" begins a failover among ends of aiordma
    assert end == UseTcp(Code.TIMEOUT_CONFIRM_LINK, Code.TIMEOUT_CONFIRM_LINK, b"A 220 hello")
    assert groups.count == 0
    c = client()
    c.receive(SERVERS_ACCEPT, 0.1)
    c.ready(ring(), QUEUE, 0.2)
    assert isinstance(c.receive(b"A 220 hello", 4.0)[0], Failed)


def test_calls_out_of_turn_are_the_owners_mistake() -> None:
    c, s = client(), server()
    for end in c, s:
        with pytest.raises(LocalProtocolError):
            end.ready(ring(), QUEUE, 0.1)
        with pytest.raises(LocalProtocolError):
            end.active(0.1)
    with pytest.raises(LocalProtocolError):
        s.connected(0.1)
    c.receive(SERVERS_ACCEPT, 0.1)
    with pytest.raises(LocalProtocolError, match="queue pair"):
        c.ready(ring(), None, 0.2)


# ---- two machines against each other


class Ends:
    """A client's and a server's process, and a clock; nothing is lost between them."""

    def __init__(self, cut: int = 1 << 20) -> None:
        self.groups = SmcrGroups(), SmcrGroups()
        self.cut, self.now, self.tokens = cut, 0.0, 0

    def connect(self, **changes: Any) -> tuple[SmcrClient, SmcrServer]:
        """Bring a connection to its end, whatever that is."""
        self.tokens += 1
        c = SmcrClient(port(1), self.groups[0], TIMES, self.now)
        s = SmcrServer(port(2, **changes), self.groups[1], TIMES, self.now)
        queues = [Queue(0x100 + self.tokens, 1, 1), Queue(0x200 + self.tokens, 2, 2)]
        rings = [ring(self.tokens, rkey=self.tokens), ring(1000 + self.tokens, rkey=self.tokens)]
        todo: list[tuple[Any, SmcrEvent]] = [(c, event) for event in c.start()]
        while todo:
            end, event = todo.pop(0)
            self.now += 0.001
            mine = end is s
            if isinstance(event, Send):
                other = c if mine else s
                for at in range(0, len(event.data), self.cut):
                    todo += [(other, e) for e in other.receive(event.data[at : at + self.cut], self.now)]
            elif isinstance(event, MakeReady):
                queue = queues[mine] if event.group is None else None
                todo += [(end, e) for e in end.ready(rings[mine], queue, self.now)]
            elif isinstance(event, Confirmed) and s.group is None:
                todo += [(s, e) for e in s.connected(self.now)]
                self.exchange(c, s)
                todo += [(e, event) for e in (c, s) for event in e.active(self.now)]
        return c, s

    def exchange(self, c: SmcrClient, s: SmcrServer) -> None:
        assert c.group is not None
        assert s.group is not None
        links = c.group.link, s.group.link
        while messages := [(i, m) for i in (0, 1) if (m := links[i].next_message()) is not None]:
            for i, message in messages:
                links[1 - i].receive(message, self.now)
        assert {link.state for link in links} == {LinkState.ACTIVE}


@given(st.integers(1, 200), st.integers(1, 6))
def test_connections_share_one_link(cut: int, count: int) -> None:
    ends = Ends(cut)
    made = [ends.connect() for _ in range(count)]
    assert {end.handshake.state for pair in made for end in pair} == {State.RDMA}
    assert {groups.count for groups in ends.groups} == {1}
    for i in 0, 1:
        (group,) = {id(pair[i].group): pair[i].group for pair in made}.values()
        assert group is not None
        assert len(group.tokens) == count
        assert len(group.link.keys) == count


def test_a_full_group_gets_a_second_one() -> None:
    ends = Ends()
    made = [ends.connect(max_conns=16) for _ in range(17)]
    assert {end.handshake.state for pair in made for end in pair} == {State.RDMA}
    assert {groups.count for groups in ends.groups} == {2}
    first = made[0][1].group
    assert first is not None
    assert not first.has_room
    first.leave(1001)
    assert first.has_room


def test_a_client_that_has_lost_the_link_is_served_by_tcp_once() -> None:
    """As Linux does it: the server forgets the link, and makes a new one for the next connection."""
    ends = Ends()
    c, _ = ends.connect()
    assert c.group is not None
    c.group.link.close()
    c, s = ends.connect()
    assert (c.handshake.state, s.handshake.state) == (State.TCP, State.TCP)
    c, s = ends.connect()
    assert (c.handshake.state, s.handshake.state) == (State.RDMA, State.RDMA)
    assert ends.groups[1].count == 1


def test_too_many_regions_are_refused_and_the_rest_goes_on() -> None:
    ends = Ends()
    c, s = ends.connect()
    assert s.group is not None
    for key in range(MAX_KEYS - 1):
        assert s.group.link.add_key(1000 + key, 0)
    assert not s.group.link.add_key(5000, 0)
    c, s = ends.connect()
    # The client uses RDMA already: a Decline would be data to it.
    assert (c.handshake.state, s.handshake.state) == (State.RDMA, State.FAILED)
    assert s.group is not None
    assert len(s.group.tokens) == 1
    assert s.group.link.state is LinkState.ACTIVE


def test_a_client_asks_once_and_claims_nothing() -> None:
    """An end of aiordma may: its second Proposal would leave the first ring in the group, and its Claim would
    be looked for without end."""
    ends = Ends()
    c, _ = ends.connect()
    again = c.proposal.changed(engine_id=b"E" * 16, nonce=bytes(16), host_id=bytes(16))
    claim = clc.Claim(
        engine_id=b"E" * 16, ticket=1, service=1, token=1, rkey=1, ring_addr=0, ring_bytes=16384
    )
    s = server(ends.groups[1])
    s.receive(USER_PROPOSAL, 0.1)
    (accepted,) = s.ready(ring(5), None, 0.1)
    assert isinstance(accepted, Send)
    accept = clc.decode(accepted.data)
    assert isinstance(accept, clc.Accept)
    (end,) = s.receive(again.changed(unknown_qpn=accept.qpn).encode(), 0.2)
    assert isinstance(end, Failed)
    assert s.group is not None
    assert s.group.tokens == {1001}
    s = server(ends.groups[1])
    (end,) = s.receive(claim.encode(), 0.1)
    assert isinstance(end, Failed)


# ---- hostile peers: every sequence of bytes gives events or an end, and nothing grows


def fates(contact: SmcrClient | SmcrServer, parts: list[bytes]) -> list[SmcrEvent]:
    seen: list[SmcrEvent] = []
    now = 0.0
    for part in parts:
        if contact.done:
            break
        now += 0.1
        seen += contact.receive(part, now)
        if seen and isinstance(seen[-1], MakeReady) and not contact.done:
            seen += contact.ready(ring(), None if contact.group else QUEUE, now)
        if seen and isinstance(seen[-1], Confirmed) and isinstance(contact, SmcrServer) and not contact.group:
            seen += contact.connected(now)
    return seen


@given(st.lists(st.binary(max_size=300), max_size=5), st.booleans())
def test_fuzz_bytes(parts: list[bytes], as_server: bool) -> None:
    contact = server() if as_server else client()
    fates(contact, [clc.EYE_CATCHER + part for part in parts])


def test_fuzz_mutated_sequences() -> None:
    rng = random.Random(42)
    ends: dict[type, int] = {}
    vectors = [KERNEL_PROPOSAL, KERNEL_ACCEPT, KERNEL_CONFIRM, SERVERS_ACCEPT, USER_CONFIRM, USER_PROPOSAL]
    vectors.append(clc.Decline(diagnosis=1).encode())
    for _ in range(3000):
        as_server = rng.random() < 0.5
        parts = []
        good = [KERNEL_PROPOSAL, KERNEL_CONFIRM] if as_server else [SERVERS_ACCEPT]
        for vector in good if rng.random() < 0.7 else rng.choices(vectors, k=3):
            data = bytearray(vector)
            for _ in range(rng.choice([0, 0, 1, 3])):
                data[rng.randrange(8, len(data) - 4)] = rng.randrange(256)
            size = rng.randrange(28, len(data) + 1) if rng.random() < 0.3 else len(data)
            parts.append(resized(bytes(data), size))
        groups = SmcrGroups()
        contact = server(groups) if as_server else client(groups)
        seen = fates(contact, parts)
        assert len(seen) <= 4
        assert groups.count <= 1
        for event in seen:
            ends[type(event)] = ends.get(type(event), 0) + 1
            if isinstance(event, Failed | UseTcp):
                assert event.code
    assert {UseTcp, Failed, PlainPeer, Confirmed, MakeReady} <= ends.keys()


def test_links_are_looked_up_only_while_they_work() -> None:
    ends = Ends()
    c, s = ends.connect()
    first = clc.decode(SERVERS_ACCEPT)
    accept = first.changed(first_contact=False, gid=GID_2, qpn=0x201)  # type: ignore[union-attr]
    assert isinstance(accept, clc.Accept)
    assert ends.groups[0].named_by(accept) is c.group
    assert ends.groups[0].named_by(accept.changed(qpn=0x202)) is None
    assert ends.groups[0].named_by(accept.changed(gid=GID_1)) is None
    assert ends.groups[1].named_by(accept) is None  # of the other role
    assert s.group is not None
    s.group.link.close()
    assert ends.groups[1].for_client_at(GID_1) is None
