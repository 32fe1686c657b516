"""The resolver's messages: round trips, and what is not believed."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiordma.proto.codes import Code
from aiordma.proto.errors import RemoteProtocolError
from aiordma.proto.resolve import Hello, QueuePairAddress, Splitter, Welcome, is_proof, refusal, udp_proof

nonces = st.binary(min_size=16, max_size=16)
addresses = st.builds(
    QueuePairAddress,
    gid=st.binary(min_size=16, max_size=16).filter(any),
    lid=st.integers(0, 0xFFFF),
    qpn=st.integers(2, 0xFFFFFF),
    qkey=st.integers(0, 0x7FFFFFFF),
    mtu=st.sampled_from([256, 512, 1024, 2048, 4096]),
    host_id=nonces,
)
GOOD = QueuePairAddress(b"\1" * 16, 0, 77, 5, 4096, b"h" * 16)


@given(nonces, nonces, addresses)
def test_messages_come_back(nonce: bytes, other: bytes, where: QueuePairAddress) -> None:
    hello = Hello(nonce, where)
    assert Hello.decode(hello.encode()) == hello
    assert len(hello.encode()) == Hello.SIZE
    welcome = Welcome(nonce, other, where)
    assert Welcome.decode(welcome.encode(), nonce) == welcome
    assert len(welcome.encode()) == Welcome.SIZE
    refused = Welcome.decode(refusal(nonce, Code.DISABLED).encode(), nonce)
    assert (refused.where, refused.code) == (None, Code.DISABLED)
    assert is_proof(udp_proof(nonce)) == nonce


@given(st.binary(max_size=120), nonces)
def test_garbage_is_refused(data: bytes, nonce: bytes) -> None:
    for decode in (Hello.decode, lambda d: Welcome.decode(d, nonce)):
        with pytest.raises(RemoteProtocolError, match="resolver"):
            decode(data)


@given(st.integers(0, Hello.SIZE - 1), st.integers(1, 255))
def test_a_changed_byte_never_does_harm(at: int, change: int) -> None:
    for whole, decode in (
        (Hello(b"n" * 16, GOOD).encode(), Hello.decode),
        (Welcome(b"n" * 16, b"m" * 16, GOOD).encode(), lambda d: Welcome.decode(d, b"n" * 16)),
    ):
        data = bytearray(whole)
        data[at] ^= change
        with contextlib.suppress(RemoteProtocolError):
            where = decode(bytes(data)).where
            assert where is None or (1 < where.qpn < 1 << 24 and where.mtu <= 4096 and where.qkey < 1 << 31)


def test_an_answer_to_another_question_is_none() -> None:
    answer = Welcome(b"a" * 16, b"b" * 16, GOOD).encode()
    with pytest.raises(RemoteProtocolError, match="another question"):
        Welcome.decode(answer, b"x" * 16)
    with pytest.raises(RemoteProtocolError, match="message type 1"):
        Welcome.decode(Hello(b"a" * 16, GOOD).encode().ljust(Welcome.SIZE, b"\0"), b"a" * 16)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"qpn": 0}, "queue pair number"),
        ({"qpn": 1}, "queue pair number"),
        ({"mtu": 0}, "MTU"),
        ({"mtu": 9000}, "MTU"),
        ({"qkey": 0x80000000}, "queue key"),
        ({"gid": bytes(16)}, "GID"),
    ],
)
def test_addresses_that_cannot_be(change: dict[str, object], text: str) -> None:
    fields: dict[str, Any] = {
        name: getattr(GOOD, name) for name in ("gid", "lid", "qpn", "qkey", "mtu", "host_id")
    }
    with pytest.raises(RemoteProtocolError, match=text):
        Hello.decode(Hello(b"n" * 16, QueuePairAddress(**{**fields, **change})).encode())


@given(st.binary(max_size=40))
def test_data_is_no_proof(data: bytes) -> None:
    nonce = is_proof(data)
    assert nonce is None or udp_proof(nonce) == data


@given(st.lists(st.integers(1, 40)))
def test_a_message_is_collected_in_pieces_and_not_beyond(cuts: list[int]) -> None:
    whole = Hello(b"n" * 16, GOOD).encode()
    splitter, at = Splitter(Hello.SIZE), 0
    for cut in [*cuts, Hello.SIZE]:
        take = min(cut, splitter.missing)
        if not take:
            break
        assert splitter.feed(whole[at : at + take]) == (at + take == len(whole))
        at += take
    assert splitter.data == whole
    with pytest.raises(RemoteProtocolError, match="ended after"):
        Splitter(8).feed(b"")
    with pytest.raises(RemoteProtocolError, match="not one of ours"):
        Splitter(80).feed(b"GET ")
