"""The bytes around a message's frames."""

from __future__ import annotations

import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distributed_aiordma.frames import (
    HEAD_BYTES,
    BadMessageError,
    begin,
    count_of,
    cut,
    layout_of,
    padding,
)


def layout(frames: list[bytes | memoryview]) -> list[list[int]]:
    """How a receiver arranges ``frames``."""
    head = begin(frames, [len(frame) for frame in frames])
    count, quick = count_of(head[:HEAD_BYTES])
    assert not quick
    return layout_of(struct.unpack_from(f"<{count}Q", head, HEAD_BYTES))


def array(nbytes: int) -> memoryview:
    return memoryview(bytearray(nbytes))


def test_bytes_share_a_buffer() -> None:
    assert layout([b"head", b"", b"more"]) == [[4, 0, 4]]


def test_two_arrays_do_not() -> None:
    assert layout([b"head", array(100), array(100)]) == [[4, 100], [100]]


def test_the_shards_of_an_array_do() -> None:
    whole = array(3000)
    assert layout([b"head", whole[:1000], whole[1000:2000], whole[2000:]]) == [[4, 1000, 1000, 1000]]


def test_what_is_long_beside_the_array_does_not_share_with_it() -> None:
    assert layout([bytes(2100), array(1)]) == [[2100], [1]]
    assert layout([bytes(1800), array(1)]) == [[1800, 1]]
    assert layout([bytes(9500), array(200_000)]) == [[9500, 200_000]]
    assert layout([bytes(10500), array(200_000)]) == [[10500], [200_000]]


def test_bytes_after_an_array_begin_again() -> None:
    assert layout([b"head", array(10), b"a", b"b", array(5)]) == [[4, 10], [1, 1], [5]] or layout(
        [b"head", array(10), b"a", b"b", array(5)]
    ) == [[4, 10], [1, 1, 5]]


def test_long_bytes_have_their_own() -> None:
    assert layout([b"head", array(10), bytes(70_000), bytes(70_000)]) == [[4, 10], [70_000], [70_000]]


# On a busy machine examples take longer.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 200_000)), min_size=1, max_size=12))
def test_every_frame_is_in_one_buffer_in_order(kinds: list[tuple[bool, int]]) -> None:
    frames: list[bytes | memoryview] = [array(n) if is_array else bytes(n) for is_array, n in kinds]
    buffers = layout(frames)
    assert [length for lengths in buffers for length in lengths] == [n for _, n in kinds]
    assert all(buffers)


# On a busy machine examples take longer.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, 300), min_size=1, max_size=8))
def test_the_longest_frame_is_aligned(lengths: list[int]) -> None:
    free = padding(lengths)
    longest = lengths.index(max(lengths))
    assert len(lengths) == 1 or (free + sum(lengths[:longest])) % 64 == 0
    parts = cut(memoryview(bytes(sum(lengths))), lengths)
    assert [len(part) for part in parts] == lengths


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HT",
        bytes(8),
        begin([b"x"], [1])[:4] + struct.pack("<I", 0),
        begin([b"x"], [1])[:4] + b"\xff" * 4,
    ],
)
def test_what_is_no_head_is_refused(head: bytes) -> None:
    with pytest.raises(BadMessageError):
        count_of(head)


def test_a_message_beyond_reason_is_refused() -> None:
    with pytest.raises(BadMessageError, match="bytes"):
        layout_of([1 << 62, 1 << 62])
