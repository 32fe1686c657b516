"""Messages in a byte stream: whole and byte by byte, and what cannot be a record."""

from __future__ import annotations

import contextlib
import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiordma.proto.errors import RemoteProtocolError
from aiordma.proto.record import RecordReader, greeting, header, read_greeting, too_large

LIMIT = 300


@given(st.lists(st.binary(max_size=LIMIT)), st.lists(st.integers(1, 700)))
def test_any_division_gives_the_same_messages(messages: list[bytes], cuts: list[int]) -> None:
    data = b"".join(header(len(message)) + message for message in messages)
    reader, got, at = RecordReader(LIMIT), [], 0
    for cut in [*cuts, len(data) + 1]:
        reader.feed(data[at : at + cut])
        at += cut
        while (view := reader.peek()) is not None:
            shown = bytes(view)
            got.append(reader.take())
            assert got[-1] == shown
        assert reader.take() is None
    assert got == messages
    assert reader.pending == 0


@given(st.binary(max_size=2000), st.integers(1, 50))
def test_garbage_gives_messages_or_a_protocol_error(data: bytes, step: int) -> None:
    reader = RecordReader(LIMIT)
    with contextlib.suppress(RemoteProtocolError):
        for at in range(0, len(data), step):
            reader.feed(data[at : at + step])
            while (message := reader.take()) is not None:
                assert len(message) <= LIMIT
            assert reader.pending < LIMIT + 4 + step


@given(st.binary(max_size=20))
def test_a_greeting_is_believed_only_when_it_is_one(data: bytes) -> None:
    try:
        limit = read_greeting(data)
    except RemoteProtocolError:
        return
    if limit is None:
        assert greeting(1024)[:8].startswith(data[:8])
        assert len(data) < len(greeting(1024))
    else:
        assert data.startswith(greeting(limit))


@pytest.mark.parametrize("limit", [1024, 16380, (1 << 31) - 1])
def test_a_greeting_tells_the_limit(limit: int) -> None:
    assert read_greeting(greeting(limit)) == limit
    assert all(read_greeting(greeting(limit)[:end]) is None for end in range(len(greeting(limit))))


def test_the_bytes_of_the_wire() -> None:
    assert greeting(0x01020304) == b"aiodgrm\x01\1\2\3\4"
    assert header(0x0A0B0C) == b"\0\x0a\x0b\x0c"


@pytest.mark.parametrize("limit", [0, 1023, 1 << 31])
def test_a_greeting_with_an_absurd_limit(limit: int) -> None:
    with pytest.raises(RemoteProtocolError, match="cannot be"):
        read_greeting(greeting(limit))


def test_too_large_says_both_sizes() -> None:
    error = too_large(9, 5)
    assert error.errno == errno.EMSGSIZE
    assert "9 bytes" in str(error)
    assert "at most 5" in str(error)
