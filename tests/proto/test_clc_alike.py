"""Messages that are alike are written and read as any other."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiordma.proto import clc, clcalike
from aiordma.proto.errors import LocalProtocolError, RemoteProtocolError
from tests.proto.test_clc import KERNEL_ACCEPT, KERNEL_PROPOSAL, answer, claim, proposal

LATER: dict[str, Any] = {"first_contact": False, "rmbe_index": 1}
MESSAGES = [
    proposal(),
    proposal(by_cm=True),
    proposal(eids=(clc.EID, b"e" * 32)),
    proposal(eids=()),
    answer(**LATER),
    answer(clc.Confirm, **LATER),
    answer(),
    answer(clc.Confirm, gids=(b"G" * 16,)),
    answer(cm_port=5, cm_token=b"T" * 16),
    claim(),
    clc.Decline(diagnosis=0x03010000),
]
WIRE = [*[message.encode() for message in MESSAGES], KERNEL_PROPOSAL, KERNEL_ACCEPT]
RING: dict[str, Any] = {
    "rkey": 7,
    "rmb_addr": 0x1234_5678_9ABC,
    "ring_bytes": 16384,
    "token": 0xFEDC_BA98,
    "proof": b"Q" * 16,
}


@pytest.fixture(autouse=True)
def _nothing_read_before() -> None:
    clcalike._read.clear()


def outcome(data: bytes) -> Any:
    try:
        return clc.decode(data)
    except RemoteProtocolError as error:
        return str(error)


def test_a_proposal_for_another_connection() -> None:
    for one in (proposal(), proposal(by_cm=True, traffic_class=7)):
        for nonce in (b"M" * 16, secrets.token_bytes(16)):
            another = one.for_another(nonce)
            assert another == one.changed(nonce=nonce)
            assert another.encode() == one.changed(nonce=nonce).encode()
            assert another.for_another(b"O" * 16).encode() == one.changed(nonce=b"O" * 16).encode()
        assert one.encode() == one.changed().encode()


@pytest.mark.parametrize("cls", [clc.Accept, clc.Confirm])
def test_an_answer_for_another_connection(cls: Any) -> None:
    one = answer(cls, **LATER)
    another = one.for_another(**RING)
    assert another == one.changed(**RING)
    assert another.encode() == one.changed(**RING).encode()
    assert one.encode() == one.changed().encode()
    assert clc.decode(another.encode()) == clc.decode(one.changed(**RING).encode())


@pytest.mark.parametrize(
    "wrong",
    [
        {"token": 0},
        {"token": 1 << 32},
        {"rkey": 1 << 32},
        {"rmb_addr": 1 << 64},
        {"proof": b""},
        {"ring_bytes": 5},
    ],
)
def test_wrong_fields_are_refused_all_the_same(wrong: dict[str, Any]) -> None:
    another = answer(**LATER).for_another(**{**RING, **wrong})
    with pytest.raises(LocalProtocolError):
        another.encode()


def test_a_nonce_of_another_length_is_refused() -> None:
    with pytest.raises(LocalProtocolError):
        proposal().for_another(b"short").encode()


@given(st.sampled_from(WIRE), st.lists(st.tuples(st.integers(0, 250), st.binary(min_size=1, max_size=1))))
def test_what_was_read_before_changes_nothing(data: bytes, changes: list[tuple[int, bytes]]) -> None:
    changed = bytearray(data)
    for at, value in changes:
        changed[at % len(data)] = value[0]
    clcalike._read.clear()
    expected = outcome(bytes(changed))
    clcalike._read.clear()
    before = outcome(data)
    assert outcome(bytes(changed)) == expected
    assert outcome(data) == before


def test_a_message_that_is_alike_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    one, offer = answer(**LATER), proposal()
    clc.decode(one.encode())
    clc.decode(offer.encode())
    monkeypatch.setattr(clc, "parse_answer", None)
    monkeypatch.setattr(clc.Proposal, "_parse", None)
    read: Any = clc.decode(one.changed(**RING).encode())
    assert (read.token, read.ring_addr, read.ring_bytes, read.proof) == (
        0xFEDC_BA98,
        0x1234_5678_9ABC,
        16384,
        b"Q" * 16,
    )
    read = clc.decode(offer.changed(nonce=b"R" * 16).encode())
    assert read.nonce == b"R" * 16


def test_what_is_remembered_of_others_is_bounded() -> None:
    for lid in range(1000):
        assert clc.decode(proposal(lid=lid).encode()).lid == lid  # type: ignore[union-attr]
    assert len(clcalike._read) <= clcalike._MOST
