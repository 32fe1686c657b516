"""Frames and greetings: cut anywhere, nothing lost, nothing taken twice."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiordma.proto.errors import RemoteProtocolError
from aiordma.proto.framing import FrameAssembler, Greeting

HEADER = struct.Struct(">BH")

BODIES = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=60)), max_size=12)
CUTS = st.lists(st.integers(1, 90), min_size=1, max_size=40)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """``data`` cut into pieces of these sizes, again and again."""
    found: list[bytes] = []
    at = 0
    while at < len(data):
        size = cuts[len(found) % len(cuts)]
        found.append(data[at : at + size])
        at += size
    return found


def encoded(frames: list[tuple[int, bytes]]) -> bytes:
    return b"".join(HEADER.pack(kind, len(body)) + body for kind, body in frames)


@pytest.mark.parametrize("byte_by_byte", [False, True])
@given(frames=BODIES, cuts=CUTS)
def test_whole_bodies(byte_by_byte: bool, frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    assembler, got, fed = FrameAssembler(HEADER), [], 0
    for piece in pieces(encoded(frames), [1] if byte_by_byte else cuts):
        assembler.feed(piece)
        fed += len(piece)
        while (header := assembler.header()) is not None:
            kind, size = header
            shown = assembler.peek(size)
            body = assembler.take(size)
            assert (shown is None) == (body is None)
            if body is None or shown is None:
                break
            assert type(body) is bytes
            assert bytes(shown) == body
            got.append((kind, body))
        assert assembler.pending == fed - len(encoded(got))
    assert got == frames
    assert assembler.pending == 0


@given(frames=BODIES, cuts=CUTS, most=st.integers(1, 100))
def test_bodies_in_parts(frames: list[tuple[int, bytes]], cuts: list[int], most: int) -> None:
    assembler = FrameAssembler(HEADER)
    got: list[tuple[int, bytes]] = []
    missing = 0
    for piece in pieces(encoded(frames), cuts):
        assembler.feed(piece)
        while assembler.pending:
            if missing:
                part = assembler.take_part(min(missing, most))
                assert 0 < len(part) <= most
                missing -= len(part)
                got[-1] = (got[-1][0], got[-1][1] + part)
                continue
            header = assembler.header()
            if header is None:
                break
            assembler.take_header()
            missing = header[1]
            got.append((header[0], b""))
    assert got == frames
    assert len(assembler.take_part(most)) == 0


@given(data=st.binary(max_size=400), cuts=CUTS, whole=st.lists(st.booleans(), min_size=1))
def test_any_bytes_are_taken_once_and_in_order(data: bytes, cuts: list[int], whole: list[bool]) -> None:
    """Hostile lengths, too: a body that never comes is waited for, and costs nothing but what was fed."""
    assembler, taken, missing = FrameAssembler(HEADER), b"", 0
    for number, piece in enumerate(pieces(data, cuts)):
        assembler.feed(piece)
        while True:
            if missing:
                part = assembler.take_part(missing)
                if not part:
                    break
                taken, missing = taken + part, missing - len(part)
                continue
            header = assembler.header()
            if header is None:
                break
            raw = HEADER.pack(*header)
            if whole[number % len(whole)]:
                body = assembler.take(header[1])
                if body is None:
                    break
                taken += raw + body
            else:
                assembler.take_header()
                taken, missing = taken + raw, header[1]
    assert len(taken) + assembler.pending == len(data)
    assert data.startswith(taken)


def test_a_long_body_in_small_pieces_is_joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with each piece: that would take time by the square of its length."""
    assembler = FrameAssembler(struct.Struct(">I"))
    assembler.feed(struct.pack(">I", 200_000))
    for _ in range(1999):
        assembler.feed(bytes(100))
        assert assembler.take(200_000) is None
    assert max(map(len, assembler._later)) < 2048  # tiny ones are joined, up to this
    assembler.feed(b"x" * 100)
    assert assembler.take(200_000) == bytes(199_900) + b"x" * 100
    assert assembler.pending == 0


GREETING = Greeting(b"aiotest\x01", "BxI", "tests")


@given(st.binary(max_size=20))
def test_a_greeting_is_believed_only_when_it_is_one(data: bytes) -> None:
    try:
        fields = GREETING.read(data)
    except RemoteProtocolError:
        assert not data.startswith(b"aiotest\x01"[: len(data)])
        return
    if fields is None:
        assert len(data) < GREETING.size
    else:
        assert GREETING.pack(*fields)[:9] == data[:9]


@given(st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=5))
def test_a_greeting_at_the_front(kind: int, most: int, rest: bytes) -> None:
    data = GREETING.pack(kind, most) + rest
    assert GREETING.read(data) == (kind, most)
    assert all(GREETING.read(data[:end]) is None for end in range(GREETING.size))


def test_a_foreign_greeting_is_refused_with_its_first_byte() -> None:
    with pytest.raises(RemoteProtocolError, match="does not speak tests: its first bytes are b'S'"):
        GREETING.read(b"S")


def test_a_body_that_comes_in_tiny_pieces_takes_no_more_memory_than_another() -> None:
    """Two bytes that were kept as they came took 64."""
    body = bytes(60_000)
    data = HEADER.pack(1, len(body)) + body
    tracemalloc.start()
    try:
        assembler = FrameAssembler(HEADER)
        for at in range(0, len(data) - 2, 2):
            assembler.feed(data[at : at + 2])
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 2 * len(body)
    assembler.feed(data[-2:])
    assert assembler.take(len(body)) == body
