"""CLC: our messages, a Linux kernel's messages, every way in which a message can be wrong."""

import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiordma.proto import clc, clcstream
from aiordma.proto.codes import Code
from aiordma.proto.errors import LocalProtocolError, RemoteProtocolError
from aiordma.proto.frozen import Frozen
from aiordma.proto.proof import accept_proof, claim_proof

# Messages of a Linux 6.12 kernel (SMC-Rv2 over rxe).
KERNEL_PROPOSAL = bytes.fromhex(
    "e2d4c3d901009c22"
    + "00" * 42
    + "001c"
    + "00" * 28
    + "0100001000000000"
    + "00" * 10
    + "ffff0a630101"
    + "ff020001"
    + "00" * 12
    + "41494f52444d412d544553542d454944"
    + "20" * 16
    + "e2d4c3d9"
)
KERNEL_ACCEPT = bytes.fromhex(
    "e2d4c3d90200a0284d99065bc4820dc4" + "00" * 10 + "ffff0a6301022a483dbe7f5a"
    "00001100000329010000000123"
    "00ffff888009fe0000"
    "00f9790d"
    "41494f52444d412d544553542d454944"
    + "20" * 16
    + "00" * 8
    + "80210000"
    + "286e6f6e6529"
    + "20" * 26
    + "ff020001"
    + "00" * 12
    + "e2d4c3d9"
)
KERNEL_CONFIRM = bytes.fromhex(
    "e2d4c3d90300b4284d99065bc4820dc4" + "00" * 10 + "ffff0a630101065bc4820dc4"
    "0000110000034c010000000223"
    "00ffff88800a7e0000"
    "004c1026"
    "41494f52444d412d544553542d454944"
    + "20" * 16
    + "00" * 8
    + "80210000"
    + "286e6f6e6529"
    + "20" * 26
    + "ff020001"
    + "00" * 12
    + "01000000"
    + "00" * 10
    + "ffff0a630101"
    + "e2d4c3d9"
)

GID = bytes(range(16))


def proposal(**changes: Any) -> clc.Proposal:
    values: dict[str, Any] = {
        "engine_id": b"E" * 16,
        "nonce": b"N" * 16,
        "host_id": b"H" * 16,
        "gid": GID,
        "lid": 7,
        "kind": 1,
        "tickets": 8,
        "traffic_class": 0xB8,
        "system_id": b"system_1",
        "mac": b"\1\2\3\4\5\6",
        "max_conns": 200,
        "max_links": 1,
    }
    return clc.Proposal(**(values | changes))


def answer(cls: type[Any] = clc.Accept, **changes: Any) -> Any:
    values: dict[str, Any] = {
        "first_contact": True,
        "gid": GID,
        "qpn": 0xABCDEF,
        "psn": 0x123456,
        "mtu": 3,
        "rkey": 0xDEADBEEF,
        "rmb_addr": 0x7FFF_0000_1000,
        "ring_bytes": 65536,
        "token": 99,
        "engine_id": b"S" * 16,
        "host_id": b"H" * 16,
        "proof": b"P" * 16,
        "window": 64,
        "rd_atomic": 16,
        "dest_rd_atomic": 128,
        "recv_bytes": 4096,
        "rmbe_index": 3,
        "lid": 5,
        "service": 0xABCD,
        "service_address": bytes(range(100, 116)),
        "service_port": 6379,
        "system_id": b"system_2",
        "mac": b"\6\5\4\3\2\1",
        "hostname": "host-a",
    }
    return cls(**(values | changes))


def claim(**changes: Any) -> clc.Claim:
    values: dict[str, Any] = {
        "engine_id": b"E" * 16,
        "ticket": 0x01020304,
        "service": 0xABCD,
        "token": 0xA1A2A3A4,
        "rkey": 0xDEADBEEF,
        "ring_addr": 0x7FFF_0000_1000,
        "ring_bytes": 32768,
        "proof": b"P" * 16,
    }
    return clc.Claim(**(values | changes))


MESSAGES = [
    proposal(),
    proposal(eids=(clc.EID, b"OTHER".ljust(32))),
    answer(),
    answer(first_contact=False, hostname=""),
    proposal(by_cm=True),
    answer(cm_port=0x1234, cm_address=bytes(range(50, 66)), cm_token=b"T" * 16),
    answer(clc.Confirm, gids=(GID, bytes(16))),
    answer(clc.Confirm, first_contact=False, hostname=""),
    clc.Decline(diagnosis=Code.NO_DEVICE, system_id=b"system_3"),
    clc.Decline(diagnosis=Code.WRONG_KIND, kind=clc.Kind.STREAM),
    claim(),
    # Their numbers name those above in what older versions have recorded (vectors.json).
    clc.Decline(diagnosis=Code.NO_COMMON_EID, version=1),
    answer(direct=False),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_roundtrip(message: clc.Message) -> None:
    assert clc.decode(message.encode()) == message


def test_layout_of_the_fields_that_wireshark_reads() -> None:
    data = answer().encode()
    assert data[:4] == data[-4:] == clc.EYE_CATCHER
    assert struct.unpack_from(">H", data, 5)[0] == len(data)
    assert data[4] == 2
    assert data[7] == 0x28  # version 2, first contact
    assert data[38:41] == b"\xab\xcd\xef"
    assert struct.unpack_from(">I", data, 41)[0] == 0xDEADBEEF
    assert (data[45], data[50]) == (3, 0x23)
    assert struct.unpack_from(">I", data, 46)[0] == 99
    assert struct.unpack_from(">Q", data, 52)[0] == 0x7FFF_0000_1000
    assert data[61:64] == b"\x12\x34\x56"
    assert answer().ring_addr == 0x7FFF_0000_1000 + 2 * 65536
    decline = clc.Decline(diagnosis=0x03010000).encode()
    assert (len(decline), decline[4], decline[16:20]) == (44, 4, bytes.fromhex("03010000"))
    assert decline[20:40] == b"\x20".ljust(20, b"\0")  # Linux, and what SMC reserves
    assert clc.Decline(diagnosis=Code.NO_DEVICE).text == Code.NO_DEVICE.text


def test_kernel_messages() -> None:
    first = clc.decode(KERNEL_PROPOSAL)
    assert isinstance(first, clc.Proposal)
    assert not first.is_aiordma
    assert first.eids == (b"AIORDMA-TEST-EID".ljust(32),)
    assert first.gid == bytes(10) + bytes.fromhex("ffff0a630101")
    assert (first.max_conns, first.max_links) == (255, 2)
    accept = clc.decode(KERNEL_ACCEPT)
    assert isinstance(accept, clc.Accept)
    assert (accept.first_contact, accept.qpn, accept.rkey, accept.token) == (True, 0x11, 0x329, 1)
    assert (accept.ring_bytes, accept.mtu, accept.psn) == (65536, 3, 0xF9790D)
    assert accept.rmb_addr == 0xFFFF888009FE0000
    assert accept.hostname == "(none)"
    assert not accept.is_aiordma
    confirm = clc.decode(KERNEL_CONFIRM)
    assert isinstance(confirm, clc.Confirm)
    assert (confirm.token, confirm.rkey, confirm.psn) == (2, 0x34C, 0x4C1026)
    assert confirm.gids == (bytes(10) + bytes.fromhex("ffff0a630101"),)


#: What aiordma sent before it knew the length that Linux asks for in version 2.
OLD_DECLINE = bytes.fromhex("e2d4c3d904001c20" + "00" * 8 + "0a1d000c" + "20020000" + "e2d4c3d9")


def test_a_decline_has_the_length_of_its_version() -> None:
    """Linux takes another length for a broken peer, and its connect() fails."""
    second = clc.Decline(diagnosis=Code.NO_COMMON_EID).encode()
    assert second == bytes.fromhex("e2d4c3d904002c20" + "00" * 8 + "0303000820" + "00" * 19 + "e2d4c3d9")
    first = clc.Decline(diagnosis=Code.NO_COMMON_EID, version=1).encode()
    assert first == bytes.fromhex("e2d4c3d904001c10" + "00" * 8 + "0303000800" + "00" * 3 + "e2d4c3d9")
    with pytest.raises(LocalProtocolError, match="version"):
        clc.Decline(diagnosis=1, version=3).encode()


def test_declines_between_old_and_new_peers() -> None:
    """The longer one has its fields where the shorter one has them, and the shorter one is still read."""
    new = clc.Decline(diagnosis=Code.WRONG_KIND, kind=1)
    assert clc.decode(OLD_DECLINE) == new
    assert new.encode()[8:24] == OLD_DECLINE[8:24]
    splitter = clcstream.Splitter()
    assert splitter.feed(OLD_DECLINE + b"stream") == [new]
    assert splitter.rest() == b"stream"


def test_both_ports_are_without_a_gateway_unless_said_otherwise() -> None:
    for cls in clc.Accept, clc.Confirm:
        assert answer(cls).encode()[104] == 0x80
        # What older versions of aiordma sent, whatever lay between.
        assert clc.decode(patched(answer(cls), 104, b"\0")) == answer(cls, direct=False)
    assert clc.decode(KERNEL_ACCEPT).direct is True  # type: ignore[union-attr]


def test_a_kernel_of_release_0() -> None:
    """Linux 6.1: what release 1 fills is there in a Confirm, and empty; its GIDs come behind that."""
    data = bytearray(KERNEL_CONFIRM)
    data[105] = 0x20
    data[140:156] = bytes(16)
    confirm = clc.decode(data)
    assert isinstance(confirm, clc.Confirm)
    assert confirm.gids == (bytes(10) + bytes.fromhex("ffff0a630101"),)
    assert (confirm.max_links, confirm.hostname) == (1, "(none)")
    with pytest.raises(RemoteProtocolError, match="too short for its first contact"):
        clc.decode(resized(bytes(data), 154))
    accept = bytearray(KERNEL_ACCEPT)
    accept[105] = 0x20
    accept[140:156] = bytes(16)
    for length in 160, 144:  # with the empty place and without it
        assert clc.decode(resized(bytes(accept), length)).hostname == "(none)"  # type: ignore[union-attr]


def test_a_host_name_cannot_write_to_a_terminal() -> None:
    """It is in logs, and in what programs print of their peers."""
    at = KERNEL_ACCEPT.index(b"(none)")
    forged = b"db1\x1b[2J\r\n\xffnot a kernel".ljust(32)
    decoded = clc.decode(KERNEL_ACCEPT[:at] + forged + KERNEL_ACCEPT[at + 32 :])
    assert isinstance(decoded, clc.Accept)
    assert decoded.hostname == "db1?[2J??\ufffdnot a kernel"


def test_reasons_have_the_numbers_of_linux() -> None:
    names = {
        0x03030009: "RELEASE_MISMATCH",
        0x0303000B: "MAX_LINKS_MISMATCH",
        0x030F0000: "GATEWAY_MISMATCH",
        0x09990001: "INTERNAL_RTOKEN",
        0x09990002: "INTERNAL_READY_LINK",
        0x09990003: "INTERNAL_REGISTER",
    }
    assert {code.value: code.name for code in Code if code.value in names} == names


def test_our_messages_differ_from_the_kernel_only_by_our_block() -> None:
    ours = proposal(
        gid=bytes(10) + bytes.fromhex("ffff0a630101"),
        system_id=bytes(8),
        mac=bytes(6),
        max_conns=255,
        max_links=2,
        eids=(b"AIORDMA-TEST-EID".ljust(32),),
    ).encode()
    head = len(KERNEL_PROPOSAL) - 4
    assert ours[7:22] == KERNEL_PROPOSAL[7:22]
    assert ours[38:head] == KERNEL_PROPOSAL[38:head]


def test_proof_depends_on_both_values() -> None:
    proof = accept_proof(b"n" * 16, b"e" * 16)
    assert len(proof) == 16
    assert len({proof, accept_proof(b"m" * 16, b"e" * 16), accept_proof(b"n" * 16, b"f" * 16)}) == 3
    assert proof not in proposal(nonce=b"n" * 16, engine_id=b"e" * 16).encode()


def test_a_longer_block_of_a_newer_sender_is_read() -> None:
    data = answer().encode()
    at = data.index(b"aiordma\x01")
    length = struct.unpack_from(">H", data, at + 8)[0]
    longer = bytearray(data[:-4] + b"new field" + data[-4:])
    struct.pack_into(">H", longer, at + 8, length + 9)
    struct.pack_into(">H", longer, 5, len(longer))
    assert clc.decode(longer) == answer()


def test_what_a_newer_client_needs_is_seen() -> None:
    """In the flags of the block, where it changes no other field, and where nothing is by default."""
    plain, needing = proposal().encode(), proposal(needs=0x81).encode()
    at = plain.index(b"aiordma\x01") + 10
    assert (plain[at : at + 2], needing[at : at + 2]) == (b"\0\0", b"\x81\0")
    assert plain[:at] + plain[at + 2 :] == needing[:at] + needing[at + 2 :]
    assert clc.decode(needing) == proposal(needs=0x81)
    # The other byte is for what it can do beside: unknown bits are ignored.
    able = plain[: at + 1] + b"\xff" + plain[at + 2 :]
    assert clc.decode(able) == proposal()


def test_what_is_appended_for_rdma_cm_is_missed_by_nobody() -> None:
    """Only who needs rdma_cm says something of it, so messages of others are as they were."""
    assert len(proposal(by_cm=True).encode()) == len(proposal().encode()) + 1
    place: dict[str, Any] = {"cm_port": 1, "cm_address": b"A" * 16, "cm_token": b"T" * 16}
    assert len(answer(**place).encode()) == len(answer().encode()) + 34
    assert answer(**{**place, "cm_port": 0}).encode() == answer().encode()
    for field, value in ("cm_port", 65536), ("cm_address", b""), ("cm_token", b"T" * 17):
        with pytest.raises(LocalProtocolError):
            answer(**{**place, field: value}).encode()


@pytest.mark.parametrize("code", range(16))
def test_every_ring_size_code(code: int) -> None:
    size = 16384 << code
    assert clc.ring_bytes_code(size) == code
    assert clc.decode(answer(ring_bytes=size).encode()).ring_bytes == size  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [0, 1, 8192, 16383, 16385, 3 * 16384, 16384 << 16])
def test_other_ring_sizes_are_refused(size: int) -> None:
    with pytest.raises(LocalProtocolError, match="power of two"):
        clc.ring_bytes_code(size)


@pytest.mark.parametrize(
    ("message", "word"),
    [
        (proposal(engine_id=b""), "engine_id"),
        (answer(engine_id=b""), "engine_id"),
        (proposal(release=16), "release"),
        (answer(release=-1), "release"),
        (answer(max_conns=0), "max_conns"),
        (proposal(nonce=b"short"), "nonce"),
        (proposal(eids=(clc.EID,) * 9), "at most 8"),
        (proposal(eids=(b"x",)), "enterprise id"),
        (proposal(lid=65536), "lid"),
        (answer(qpn=1 << 24), "qpn"),
        (answer(psn=-1), "psn"),
        (answer(mtu=6), "mtu"),
        (answer(mtu=0), "mtu"),
        (answer(token=0), "token"),
        (answer(window=0), "window"),
        (answer(rmbe_index=0), "rmbe_index"),
        (answer(clc.Confirm, first_contact=False, gids=(GID,)), "first contact"),
        (answer(clc.Confirm, gids=(GID,) * 9), "number of GIDs"),
        (clc.Decline(diagnosis=1 << 32), "diagnosis"),
    ],
)
def test_bad_fields_are_refused_before_they_are_sent(message: clc.Message, word: str) -> None:
    with pytest.raises(LocalProtocolError, match=word):
        message.encode()


def patched(message: clc.Message, at: int, value: bytes) -> bytes:
    data = bytearray(message.encode())
    data[at : at + len(value)] = value
    return bytes(data)


def resized(data: bytes, length: int) -> bytes:
    """A message cut to ``length`` bytes with its length field and trailer made right again."""
    cut = bytearray(data[: length - 4] + clc.EYE_CATCHER)
    struct.pack_into(">H", cut, 5, length)
    return bytes(cut)


BLOCK = proposal().encode().index(b"aiordma\x01")


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "shorter than its header"),
        (b"GET / HTTP/1.1\r\n", "eye catcher"),
        (patched(proposal(), 4, b"\x05"), "unknown message type 5"),
        (patched(proposal(), 4, b"\x00"), "unknown message type 0"),
        (patched(proposal(), 5, b"\x00\x10"), "Proposal of 16 bytes"),
        (patched(proposal(), 5, b"\xff\xff"), "Proposal of 65535 bytes"),
        (patched(proposal(), 5, b"\x00\x80"), "says 128 bytes"),
        (patched(proposal(), 7, b"\x02"), "version 0"),
        (proposal().encode()[:-1] + b"!", "ends with"),
        (patched(proposal(), 50, b"\xff\xff"), "too short for its version 2 extension"),
        (patched(proposal(), 80, b"\x09"), "9 enterprise ids"),
        (patched(proposal(), 80, b"\x08"), "too short for its 8 enterprise ids"),
        (patched(proposal(), BLOCK + 8, b"\x00\x01"), "aiordma block"),
        (patched(proposal(), BLOCK + 8, b"\x01\x00"), "aiordma block"),
        (patched(answer(), 50, b"\x20"), "path MTU code 0"),
        (patched(answer(), 50, b"\x26"), "path MTU code 6"),
        (patched(answer(), 45, b"\x00"), "ring index 0"),
        (patched(answer(), 46, bytes(4)), "token 0"),
        (resized(answer().encode(), 72), "too short for its enterprise id"),
        (resized(answer().encode(), 110), "too short for its first contact extension"),
        (resized(answer().encode(), 150), "too short for its first contact extension of release 1"),
        (resized(answer(clc.Confirm).encode(), 162), "too short for its list of GIDs"),
        (patched(answer(clc.Confirm), 156, b"\x09"), "cannot carry 9 GIDs"),
        (patched(answer(clc.Confirm), 156, b"\x08"), "cannot carry 8 GIDs"),
    ],
)
def test_every_decode_error(data: bytes, word: str) -> None:
    with pytest.raises(RemoteProtocolError, match=word) as caught:
        clc.decode(data)
    assert data == b"" or caught.value.code == Code.PROTOCOL_VIOLATION


def test_window_must_be_a_power_of_two() -> None:
    data = bytearray(answer().encode())
    at = data.index(b"aiordma\x01") + 12 + 48 + 2
    assert struct.unpack_from(">H", data, at)[0] == 64
    struct.pack_into(">H", data, at, 48)
    with pytest.raises(RemoteProtocolError, match="window of 48"):
        clc.decode(data)


def test_version_1_proposal_has_no_extension() -> None:
    data = bytearray(52)
    data[:8] = clc.EYE_CATCHER + struct.pack(">BHB", 1, 52, 0x10)
    data[-4:] = clc.EYE_CATCHER
    message = clc.decode(data)
    assert isinstance(message, clc.Proposal)
    assert not message.is_aiordma
    assert message.version == clc.version_of(bytes(data)) == 1
    assert clc.version_of(proposal().encode()) == 2


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_splitter_whole_and_byte_by_byte(message: clc.Message) -> None:
    data = message.encode()
    assert clcstream.Splitter().feed(data) == [message]
    splitter = clcstream.Splitter()
    found = [got for i in range(len(data)) for got in splitter.feed(data[i : i + 1])]
    assert found == [message]
    assert splitter.rest() == b""


def test_splitter_leaves_the_applications_bytes() -> None:
    for last in (clc.Decline(diagnosis=1), clc.Decline(diagnosis=1, version=1), answer(clc.Confirm)):
        splitter = clcstream.Splitter()
        stream = proposal().encode() + last.encode() + b"GET / HTTP/1.1\r\n"
        assert splitter.feed(stream) == [proposal(), last]
        assert splitter.done
        assert splitter.feed(b"more") == []
        assert splitter.rest() == b"GET / HTTP/1.1\r\nmore"
        assert splitter.rest() == b""


def test_splitter_refuses_garbage_at_its_first_wrong_byte_and_stays_refused() -> None:
    splitter = clcstream.Splitter()
    assert splitter.feed(clc.EYE_CATCHER[:3]) == []
    with pytest.raises(RemoteProtocolError):
        splitter.feed(b"x")
    with pytest.raises(RemoteProtocolError):
        splitter.feed(proposal().encode())
    with pytest.raises(RemoteProtocolError, match="65280"):  # the length, before the body comes
        clcstream.Splitter().feed(clc.EYE_CATCHER + b"\x01\xff\x00\x22")


@pytest.mark.parametrize(
    ("prefix", "verdict"),
    [
        (b"", None),
        (clc.EYE_CATCHER, None),
        (proposal().encode()[:7], None),
        (proposal().encode()[:8], True),
        (proposal().encode(), True),
        (b"P", False),
        (clc.EYE_CATCHER[:3] + b"x", False),
        (clc.EYE_CATCHER + b"\x09", False),
        (clc.EYE_CATCHER + b"\x01\xff", False),
        (clc.EYE_CATCHER + b"\x01\x00\x08\x22", False),
        (clc.EYE_CATCHER + b"\x01\x00\x80\x02", False),
    ],
)
def test_looks_like_clc(prefix: bytes, verdict: bool | None) -> None:
    assert clc.looks_like_clc(prefix) is verdict


@pytest.mark.parametrize("length", range(1, 53))
def test_looks_like_clc_never_says_no_to_a_beginning(length: int) -> None:
    assert clc.looks_like_clc(proposal().encode()[:length]) is not False


# The invariant of fuzzing: bytes give messages or RemoteProtocolError, nothing else, however they are cut.


def outcome(data: bytes, step: int) -> tuple[list[clc.Message], bool, bytes]:
    splitter = clcstream.Splitter()
    found: list[clc.Message] = []
    for i in range(0, len(data), step):
        try:
            found += splitter.feed(data[i : i + step])
        except RemoteProtocolError:
            return found, True, b""
    return found, False, splitter.rest()


@given(st.binary(max_size=200), st.booleans())
def test_fuzz_random_bytes(data: bytes, eye: bool) -> None:
    if eye:
        data = clc.EYE_CATCHER + data
    whole = outcome(data, len(data) or 1)
    assert outcome(data, 1) == whole
    try:
        clc.decode(data)
    except RemoteProtocolError:
        pass


def test_fuzz_mutated_messages() -> None:
    rng = random.Random(7609)
    samples = [m.encode() for m in MESSAGES] + [KERNEL_PROPOSAL, KERNEL_ACCEPT, KERNEL_CONFIRM]
    decoded = refused = 0
    for _ in range(6000):
        data = bytearray(rng.choice(samples))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            kind = rng.randrange(4)
            if kind == 0:
                data[at] = rng.randrange(256)
            elif kind == 1:
                data[at] ^= 1 << rng.randrange(8)
            elif kind == 2:
                del data[at : at + rng.randint(1, 8)]
            else:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
            if not data:
                data = bytearray(b"\0")
        if rng.random() < 0.5 and len(data) >= 12:  # make it reach the fields
            data[:4] = data[-4:] = clc.EYE_CATCHER
            struct.pack_into(">H", data, 5, len(data))
        try:
            message = clc.decode(data)
        except RemoteProtocolError:
            refused += 1
        else:
            decoded += 1
            assert isinstance(message, Frozen | clc.Claim)
        whole = outcome(bytes(data), len(data))
        by_byte = outcome(bytes(data), 1)
        # Messages before the fault may come out earlier when fed by bytes; the verdict is the same.
        assert by_byte[1:] == whole[1:]
        assert by_byte[0][: len(whole[0])] == whole[0]
    assert decoded > 100
    assert refused > 100


def test_a_claim_is_proved_with_every_field_of_it() -> None:
    def prove(secret: bytes = b"secret", **changes: Any) -> bytes:
        made = claim(**changes)
        return claim_proof(made.fields, made.engine_id, secret)

    proofs = {prove(), prove(b"other")}
    other: dict[str, Any]
    for other in (
        {"engine_id": b"F" * 16},
        {"ticket": 1},
        {"service": 1},
        {"token": 1},
        {"rkey": 1},
        {"ring_addr": 1},
        {"ring_bytes": 16384},
    ):
        proofs.add(prove(**other))
    assert len(proofs) == 9
    assert prove(proof=b"Q" * 16) in proofs  # the proof itself is none of them


@pytest.mark.parametrize(
    ("field", "value"),
    [("ticket", 0), ("service", 0), ("token", 0), ("ring_bytes", 5), ("engine_id", b""), ("rkey", 1 << 32)],
)
def test_a_claim_that_cannot_be_is_not_sent(field: str, value: object) -> None:
    with pytest.raises(LocalProtocolError):
        claim(**{field: value}).encode()


@pytest.mark.parametrize(("at", "zeros"), [(32, 4), (36, 2), (40, 4)], ids=["ticket", "service", "token"])
def test_a_claim_of_nothing_is_a_violation(at: int, zeros: int) -> None:
    data = bytearray(claim().encode())
    block = data.index(b"aiordma\x01") + 12
    assert data[block + at : block + at + zeros] != bytes(zeros)
    data[block + at : block + at + zeros] = bytes(zeros)
    with pytest.raises(RemoteProtocolError, match="Claim of ticket"):
        clc.decode(data)


def test_a_claim_needs_our_block_and_a_size_that_exists() -> None:
    data = claim().encode()
    with pytest.raises(RemoteProtocolError, match="without the aiordma block"):
        clc.decode(data.replace(b"aiordma\x01", b"aiordma\x02"))
    wrong = bytearray(data)
    wrong[wrong.index(b"aiordma\x01") + 12 + 39] = 16
    with pytest.raises(RemoteProtocolError, match="size 16"):
        clc.decode(wrong)
