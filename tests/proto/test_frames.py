"""Frames: cut anywhere, nothing lost; everything that is no frame refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiordma.proto.cdc import StateFlag
from aiordma.proto.errors import RemoteProtocolError
from aiordma.proto.frames import (
    MAX_BODY_BYTES,
    Assembler,
    data_header,
    end_frame,
    negotiation_frame,
    on_ring_frame,
)


@given(
    bodies=st.lists(st.binary(min_size=1, max_size=50), max_size=10),
    end=st.sampled_from(["none", "done", "closed", "done, then closed"]),
    cuts=st.lists(st.integers(1, 30), min_size=1, max_size=200),
)
def test_wherever_it_is_cut(bodies: list[bytes], end: str, cuts: list[int]) -> None:
    wire = b"".join(data_header(len(body)) + body for body in bodies)
    wire += {
        "none": b"",
        "done": end_frame(closed=False),
        "closed": end_frame(closed=True),
        "done, then closed": end_frame(closed=False) + end_frame(closed=True),
    }[end]
    assembler = Assembler()
    got = b""
    at = 0
    sizes = iter(cuts * (len(wire) + 1))
    while at < len(wire):
        piece = wire[at : at + next(sizes)]
        at += len(piece)
        got += b"".join(assembler.feed(piece))
    assert got == b"".join(bodies)
    assert assembler.done is (end != "none")
    assert bool(assembler.flags & StateFlag.CLOSED) is ("closed" in end)


@pytest.mark.parametrize(
    "wire",
    [
        b"\0\0\0\1x",
        b"\5\0\0\1x",
        b"\3\0\0\0",
        b"\3\0\x10\x01",
        b"\4\0\0\0",
        b"\4\0\0\1\1",
        b"\4\0\0\2\0\0",
        on_ring_frame() + bytes(45),
        end_frame(closed=False) + on_ring_frame(),
        b"\1\0\0\0",
        b"\1" + (MAX_BODY_BYTES + 1).to_bytes(3),
        b"\2\0\0\0",
        b"\2\0\0\2\x80\x80",
        b"\2\0\0\1\0",
        b"\2\0\0\1\x40",
        b"\2\0\0\1\xff",
        end_frame(closed=False) * 2,
        end_frame(closed=True) + end_frame(closed=False),
        end_frame(closed=False) + data_header(1) + b"x",
        b"GET / HTTP/1.1\r\n",
    ],
)
def test_what_is_no_frame(wire: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="frames"):
        Assembler().feed(wire)
    byte_by_byte = Assembler()
    with pytest.raises(RemoteProtocolError, match="frames"):
        list(map(byte_by_byte.feed, (wire[at : at + 1] for at in range(len(wire)))))


@given(
    cut=st.integers(1, 20),
    messages=st.lists(st.binary(min_size=1, max_size=30), max_size=4),
    rest=st.binary(max_size=44),
)
def test_the_way_back(cut: int, messages: list[bytes], rest: bytes) -> None:
    """Messages between the data, then the last frame; what follows is kept as it is."""
    wire = b"".join(data_header(2) + b"ab" + negotiation_frame(message) for message in messages)
    wire += on_ring_frame() + rest
    assembler = Assembler()
    got = b"".join(b"".join(assembler.feed(wire[at : at + cut])) for at in range(0, len(wire), cut))
    assert got == b"ab" * len(messages)
    assert assembler.messages == messages
    assert assembler.on_ring
    assert assembler.rest == rest


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_waits(data: bytes) -> None:
    try:
        Assembler().feed(data)
    except RemoteProtocolError:
        pass
