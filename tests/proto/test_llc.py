"""LLC: our messages, a Linux kernel's messages, every way in which a message can be wrong."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiordma.proto import llc, llcown
from aiordma.proto.errors import LocalProtocolError, RemoteProtocolError
from aiordma.proto.llcframe import MESSAGE_BYTES

GID = bytes(range(16))
TICKET = llcown.Ticket(number=1, service=2, token=3, rkey=4, ring_addr=5, ring_bytes=16384)

MESSAGES: list[llc.LlcMessage] = [
    llc.ConfirmLink(
        gid=GID, qpn=0xABCDEF, link_uid=7, link_num=2, mac=b"\1\2\3\4\5\6", max_links=1, max_conns=9
    ),
    llc.ConfirmLink(gid=GID, qpn=1, link_uid=0xFFFFFFFF, response=True),
    llc.AddLink(gid=GID, qpn=1, psn=0xFFFFFF, link_num=2, mtu=5),
    llc.AddLink(gid=GID, qpn=1, psn=2, link_num=2, response=True, rejected=1),
    llc.DeleteLink(reason=llc.DeleteReason.OPERATOR, link_num=1, orderly=True),
    llc.DeleteLink(reason=5, all_links=True, response=True),
    llc.ConfirmRKey(tokens=(llc.RToken(0, 1, 2),)),
    llc.ConfirmRKey(
        tokens=(llc.RToken(0, 1, 2), llc.RToken(2, 3, 4), llc.RToken(3, 5, (1 << 64) - 1)), response=True
    ),
    llc.ConfirmRKey(tokens=(llc.RToken(0, 1, 2),), response=True, negative=True, retry=True),
    llc.TestLink(user_data=GID),
    llc.TestLink(response=True),
    llc.DeleteRKey(rkeys=(1, 2, 0xFFFFFFFF)),
    llc.DeleteRKey(rkeys=tuple(range(8)), response=True, negative=True, error_mask=0x81),
    llc.AnnounceAck(),
    llcown.Ticket(number=1, service=2, token=3, rkey=4, ring_addr=0x7FFF_0000_1000, ring_bytes=1 << 18),
    llcown.Ticket(number=0xFFFFFFFF, service=0xFFFF, token=1, rkey=0, ring_addr=0, ring_bytes=16384),
    llcown.TicketBack(number=7, service=2, used=True),
    llcown.TicketBack(service=2),
    llcown.RingResize(token=0x10007, stage=llcown.ResizeStage.OFFER, ring_bytes=1 << 20),
    llcown.RingResize(token=7, stage=llcown.ResizeStage.PAUSED, position=(1 << 63) + 5),
    llcown.RingResize(token=7, stage=llcown.ResizeStage.PAUSED, refused=True),
    llcown.RingResize(token=7, stage=llcown.ResizeStage.RING, rkey=9, ring_addr=1 << 47, ring_bytes=1 << 14),
    # Older versions have recorded others by the numbers of these two (test_vectors.ENDED).
    llc.RequestAddLink(),
    llc.RequestAddLink(response=True),
    # Their numbers name those above in what older versions have recorded (vectors.json).
    llcown.TicketBack(number=7, service=2, response=True, bound=True),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_roundtrip(message: llc.LlcMessage) -> None:
    data = message.encode()
    assert len(data) == data[1] == MESSAGE_BYTES
    assert llc.is_llc(data[0])
    assert llc.decode(data) == message
    assert llc.decode(memoryview(data)) == message


def test_kernel_messages() -> None:
    """Messages of a Linux 6.12 kernel: version 2, whose type byte is all that differs here."""
    gid = bytes(10) + bytes.fromhex("ffff0a630102")
    confirm = llc.decode(
        bytes.fromhex("212c00032a483dbe7f5a") + gid + bytes.fromhex("000011010000010102ff") + bytes(8)
    )
    assert confirm == llc.ConfirmLink(
        gid=gid,
        qpn=0x11,
        link_uid=0x101,
        link_num=1,
        mac=bytes.fromhex("2a483dbe7f5a"),
        max_links=2,
        max_conns=255,
    )
    delete = llc.decode(bytes.fromhex("292c0000010000000000034c") + bytes(32))
    assert delete == llc.DeleteRKey(rkeys=(0x34C,))
    answer = llc.decode(bytes.fromhex("292c008001") + bytes(39))
    assert answer == llc.DeleteRKey(rkeys=(0,), response=True)


#: Linux 6.12 as a server that offers a second link: version 2, longer than 44 bytes.
KERNEL_ADD_LINK = bytes.fromhex(
    "225800002a483dbe7f5a000000000000000000000000ffff0a63010200001202033e877a"
    "0000000000000000800000000000000000000000ffff0a6301020000000000000000010000000329"
    "0000051cffff888009fe0000"
)
#: ... and as the client, which has no second port.
KERNEL_REJECT = bytes.fromhex(
    "222c00c02a483dbe7f5a000000000000000000000000ffff0a63010200001202033e877a0000000000000000"
)


def test_a_kernel_offers_a_link_and_refuses_one() -> None:
    link = llc.AddLink(
        gid=bytes(10) + bytes.fromhex("ffff0a630102"),
        qpn=0x12,
        psn=0x3E877A,
        link_num=2,
        mtu=3,
        mac=bytes.fromhex("2a483dbe7f5a"),
    )
    assert llc.decode(KERNEL_REJECT) == link.changed(response=True, rejected=0)
    offer = llc.decode(KERNEL_ADD_LINK)
    assert offer == link.changed(keys=(llc.NewKey(0x329, 0x51C, 0xFFFF888009FE0000),))
    other_order = KERNEL_ADD_LINK[:1] + b"\0\x58" + KERNEL_ADD_LINK[3:70] + b"\0\1" + KERNEL_ADD_LINK[72:]
    assert llc.decode(other_order) == offer
    with pytest.raises(LocalProtocolError, match="version 2 only"):
        offer.encode()


def test_long_messages_of_version_2() -> None:
    gids = (GID, bytes(16))
    ask = bytes.fromhex("253c0000") + bytes(20) + b"\2\0\0\0" + b"".join(gids)
    assert llc.decode(ask) == llc.RequestAddLink(gids=gids)
    keys = tuple(range(1, 256))
    drop = b"".join(key.to_bytes(4, "big") for key in keys)
    length = (8 + len(drop)).to_bytes(2, "little")
    assert llc.decode(b"\x29" + length + b"\0\xff\0\0\0" + drop) == llc.DeleteRKey(rkeys=keys)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_version_2_differs_by_its_header(message: llc.LlcMessage) -> None:
    first = message.encode()
    data = llc.in_version_2(first)
    assert (data[0], data[3:]) == (first[0] | 0x20, first[3:])
    assert sorted(data[1:3]) == [0, 44]
    swapped = bytes((data[0], data[2], data[1])) + data[3:]
    for sent in data, swapped:  # the kernel's length is in the order of its processor
        read = llc.decode(sent)
        if isinstance(message, llc.AddLink) and message.rejected is not None:
            read = read.changed(rejected=message.rejected)  # there is no place for it
        assert read == message


@pytest.mark.parametrize(
    ("message", "word"),
    [
        (llc.ConfirmLink(gid=b"", qpn=1, link_uid=1), "GID"),
        (llc.ConfirmLink(gid=GID, qpn=1 << 24, link_uid=1), "qpn"),
        (llc.AddLink(gid=GID, qpn=1, psn=1, link_num=256), "link_num"),
        (llc.DeleteLink(reason=-1), "reason"),
        (llc.ConfirmRKey(tokens=()), "1 to 3"),
        (llc.ConfirmRKey(tokens=(llc.RToken(0, 1, 2),) * 4), "1 to 3"),
        (llc.TestLink(user_data=b"x"), "user_data"),
        (llc.DeleteRKey(rkeys=()), "1 to 8"),
        (llc.DeleteRKey(rkeys=(0,) * 9), "1 to 8"),
        (llcown.Ticket(number=1, service=1, token=1, rkey=1, ring_addr=0, ring_bytes=20000), "ring of 20000"),
        (llcown.Ticket(number=1, service=1 << 16, token=1, rkey=1, ring_addr=0, ring_bytes=16384), "service"),
        (llcown.TicketBack(number=-1, service=1), "number"),
    ],
)
def test_bad_fields_are_refused_before_they_are_sent(message: llc.LlcMessage, word: str) -> None:
    with pytest.raises(LocalProtocolError, match=word):
        message.encode()


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "0 bytes"),
        (b"\x01", "1 bytes"),
        (bytes([1, 44]) + bytes(41), "43 bytes"),
        (bytes([1, 43]) + bytes(42), "44 bytes that says 2b"),
        (bytes([1, 44]) + bytes(43), "45 bytes that says 2c"),
        (bytes([0x21, 45]) + bytes(42), "44 bytes that says 2d"),
        (bytes([0x22, 0, 0x21]) + bytes(8190), "8193 bytes that says"),
        (KERNEL_ADD_LINK[:-1], "87 bytes that says 58"),
        (b"\x22\x57\0" + KERNEL_ADD_LINK[3:-1], "87 bytes says that it has 0100 .hex. keys"),
        (b"\x22\x2d\0" + KERNEL_ADD_LINK[3:45], "Add Link of 45 bytes is too short"),
        (KERNEL_ADD_LINK[:70] + b"\2\0" + KERNEL_ADD_LINK[72:], "it has 0200"),
        (bytes([0x25, 44, 0]) + bytes(21) + b"\2" + bytes(19), "cannot carry 2 GIDs"),
        (bytes([0x29, 48, 0, 0, 11]) + bytes(43), "with 11 keys .1 to 10"),
        (bytes([0x0B, 44]) + bytes(42), "type 0x0b"),
        (bytes([0x11, 44]) + bytes(42), "type 0x11"),
        (bytes([0xFE, 44]) + bytes(42), "type 0xfe"),
        (bytes([2, 44]) + bytes(42), "path MTU code 0"),
        (bytes([6, 44, 0, 0, 3]) + bytes(39), "3 further links"),
        (bytes([9, 44, 0, 0, 0]) + bytes(39), "with 0 keys"),
        (bytes([9, 44, 0, 0, 9]) + bytes(39), "with 9 keys"),
    ],
)
def test_every_decode_error(data: bytes, word: str) -> None:
    with pytest.raises(RemoteProtocolError, match=word):
        llc.decode(data)


@given(st.binary(max_size=60))
def test_fuzz_random_bytes(data: bytes) -> None:
    try:
        llc.decode(data)
    except RemoteProtocolError:
        pass


def test_fuzz_mutated_messages() -> None:
    rng = random.Random(44)
    decoded = refused = 0
    for _ in range(5000):
        data = bytearray(rng.choice(MESSAGES).encode())
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            llc.decode(data)
            decoded += 1
        except RemoteProtocolError:
            refused += 1
    assert decoded > 100
    assert refused > 100


@pytest.mark.parametrize(("at", "size"), [(4, 4), (8, 2), (12, 4)], ids=["number", "service", "token"])
def test_a_ticket_of_nothing_is_a_violation(at: int, size: int) -> None:
    data = bytearray(TICKET.encode())
    assert data[at : at + size] != bytes(size)
    data[at : at + size] = bytes(size)
    with pytest.raises(RemoteProtocolError, match="Ticket"):
        llc.decode(data)


def test_a_ticket_for_a_ring_beyond_all_sizes_is_a_violation() -> None:
    data = bytearray(TICKET.encode())
    data[11] = 16
    with pytest.raises(RemoteProtocolError, match="size 16"):
        llc.decode(data)
