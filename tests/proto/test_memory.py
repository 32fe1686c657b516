"""Descriptors and messages of one-sided memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiordma.proto.errors import RemoteProtocolError
from aiordma.proto.memory import (
    DESCRIPTOR_BYTES,
    Descriptor,
    Op,
    Rights,
    head,
    open_answer,
    parse_atomic,
    parse_open_answer,
    parse_span,
    parse_word,
    span,
    word,
)

U32, U64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)


@given(st.integers(1, 7), st.integers(1, (1 << 63) - 1), U64)
def test_descriptors_survive(rights: int, length: int, expires_ms: int) -> None:
    made = Descriptor.new(Rights(rights), length, expires_ms)
    data = made.encode()
    assert len(data) == DESCRIPTOR_BYTES == 56
    assert Descriptor.decode(data) == made
    assert made.matches(Descriptor.decode(data))
    assert not made.matches(Descriptor.new(Rights(rights), length, expires_ms))


def test_the_bytes_of_a_descriptor() -> None:
    made = Descriptor(Rights.READ | Rights.ATOMIC, 4096, 7, b"i" * 16, b"s" * 16)
    assert made.encode() == (
        b"aRM\x01\x05\0\0\0" + b"\0\0\0\0\0\0\x10\0" + b"\0\0\0\0\0\0\0\x07" + b"i" * 16 + b"s" * 16
    )


@given(st.binary(max_size=70))
def test_other_bytes_are_none(data: bytes) -> None:
    with pytest.raises(ValueError, match="descriptor"):
        Descriptor.decode(data)


@given(U32, U64, U32)
def test_spans(number: int, offset: int, length: int) -> None:
    assert parse_span(memoryview(span(number, offset, length) + b"rest")) == (number, offset, length)


@given(U32, st.integers(0, 1 << 62), st.integers(1, 1 << 62), U32, st.integers(1, 7))
def test_open_answers(number: int, address: int, length: int, rkey: int, rights: int) -> None:
    data = open_answer(number, address, length, rkey, Rights(rights))
    assert data[:8] == head(Op.OPENED, number)
    assert parse_open_answer(memoryview(data)[8:]) == (address, length, rkey, rights)


@pytest.mark.parametrize(
    ("address", "length", "rights"), [(0, 0, 1), ((1 << 64) - 1, 2, 1), (0, 1, 0), (0, 1, 8)]
)
def test_impossible_open_answers(address: int, length: int, rights: int) -> None:
    data = open_answer(1, address, length, 0, Rights(rights))
    with pytest.raises(RemoteProtocolError):
        parse_open_answer(memoryview(data)[8:])


def test_wrong_lengths() -> None:
    for parse in (parse_open_answer, parse_atomic, parse_word, parse_span):
        with pytest.raises(RemoteProtocolError):
            parse(memoryview(bytes(3)))
    assert parse_word(memoryview(word(12))) == 12
