"""Frames of a channel on TCP: cut anywhere, nothing lost; everything that is no frame refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiordma.proto.channel_frames import (
    CLOSE_FRAME,
    SHORT_BYTES,
    ChannelAssembler,
    greeting,
    message_header,
)
from aiordma.proto.errors import RemoteProtocolError

KIND, LIMIT = 2, 100_000

SIZES = st.one_of(
    st.integers(0, 40), st.integers(SHORT_BYTES - 2, SHORT_BYTES + 2), st.integers(LIMIT - 1, LIMIT)
)


def receive(assembler: ChannelAssembler, data: bytes, step: int) -> list[bytes]:
    """Everything in ``data``, which comes in pieces of ``step`` bytes."""
    got: list[bytes] = []
    at = 0
    while at < len(data) and not assembler.closed:
        room = assembler.room
        if room is None:
            piece = data[at : at + step]
            assembler.feed(piece)
        else:
            piece = data[at : at + min(step, len(room))]
            room[: len(piece)] = piece
            assembler.filled(len(piece))
        at += len(piece)
        while assembler.greeted and (message := assembler.take()) is not None:
            assert isinstance(message, memoryview) == (len(message) > SHORT_BYTES)
            got.append(bytes(message))
    return got


def test_the_bytes_of_the_wire() -> None:
    assert greeting(3, 0x01020304) == b"aiordma\x02\x03\0\0\0\1\2\3\4"
    assert message_header(0x0A0B) == b"\xc1\0\0\0\0\0\x0a\x0b"
    assert CLOSE_FRAME == b"\xc4\0\0\0\0\0\0\0"


@pytest.mark.parametrize("closes", [False, True])
@given(
    sizes=st.lists(SIZES, max_size=5),
    step=st.one_of(st.just(1 << 20), st.integers(50, 5000), st.sampled_from([SHORT_BYTES, 65536])),
)
def test_wherever_it_is_cut(closes: bool, sizes: list[int], step: int) -> None:
    messages = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    data = greeting(KIND, 5) + b"".join(message_header(len(message)) + message for message in messages)
    assembler = ChannelAssembler(KIND, LIMIT)
    assert receive(assembler, data + (CLOSE_FRAME if closes else b""), step) == messages
    assert assembler.peer_limit == 5
    assert assembler.closed is closes
    assert assembler.take() is None


@settings(max_examples=10)
@given(st.lists(st.binary(max_size=30), max_size=5))
def test_byte_by_byte(messages: list[bytes]) -> None:
    messages.append(b"x" * (SHORT_BYTES + 1))
    data = greeting(KIND, 5) + b"".join(message_header(len(message)) + message for message in messages)
    assembler = ChannelAssembler(KIND, LIMIT)
    assert receive(assembler, data + CLOSE_FRAME, 1) == messages
    assert assembler.closed


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"GET / HTTP/1.1", "does not speak message channels"),
        (greeting(KIND + 1, 5), "another kind of channel: 3, not 2"),
        (greeting(KIND, 5) + message_header(LIMIT + 1), "100001 bytes announced, 100000 at most"),
        (greeting(KIND, 5) + message_header((1 << 32) - 1), "at most are taken"),
        (greeting(KIND, 5) + b"\xc2" + bytes(7), "unknown type 0xc2"),
        (greeting(KIND, 5) + b"\xc4\0\0\0\0\0\0\1", "unknown type 0xc4"),
    ],
)
@pytest.mark.parametrize("step", [1, 1000])
def test_what_is_refused(data: bytes, text: str, step: int) -> None:
    with pytest.raises(RemoteProtocolError, match=text):
        receive(ChannelAssembler(KIND, LIMIT), data, step)


@given(st.binary(max_size=200), st.integers(1, 60))
def test_garbage_gives_messages_or_a_protocol_error(data: bytes, step: int) -> None:
    with contextlib.suppress(RemoteProtocolError):
        for message in receive(ChannelAssembler(KIND, 50), greeting(KIND, 5) + data, step):
            assert len(message) <= 50


def test_drop_forgets_what_was_not_taken() -> None:
    assembler = ChannelAssembler(KIND, LIMIT)
    assert receive(assembler, greeting(KIND, 5) + message_header(50_000) + b"begun", 1000) == []
    room = assembler.room
    assembler.drop()
    assert room is not None
    assert assembler.room is None
    assert assembler.greeted
    assembler.feed(message_header(3) + b"new")
    assert assembler.take() == b"new"
