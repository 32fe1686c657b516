"""Objects of MessagePack: counted as a decoder would meet them, and never beyond the bytes that are there."""

from __future__ import annotations

import struct
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st
from msgspec import msgpack

from aiordma.proto.objects import LARGEST_LIMIT, MAX_OBJECTS, SETS, STRINGS

from .cores import CORES

pytestmark = pytest.mark.parametrize("core", CORES)

MOST = LARGEST_LIMIT


def count(core: str, data: bytes | memoryview, most: int = MOST) -> int:
    found: int = CORES[core].objects.count_objects(data, most)
    return found


def walk(value: Any) -> int:
    """Objects in ``value``."""
    if isinstance(value, list):
        return 1 + sum(map(walk, value))
    if isinstance(value, dict):
        return 1 + sum(walk(k) + walk(v) for k, v in value.items())
    return 1


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text()
    | st.binary()
    | st.builds(msgpack.Ext, st.integers(-128, 127), st.binary(max_size=40))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text() | st.integers(0, 99), inner),
)


@hypothesis.given(VALUES)
def test_the_count_is_that_of_the_value(core: str, value: Any) -> None:
    data = msgpack.encode(value)
    assert count(core, data) == walk(value)
    assert count(core, memoryview(b"x" + data)[1:]) == walk(value)
    assert count(core, data + b"\x90\x90") == walk(value)


@hypothesis.given(VALUES)
def test_every_prefix_has_no_more_and_the_decoder_reports_it(core: str, value: Any) -> None:
    data = msgpack.encode(value)
    counts = [count(core, data[:end]) for end in range(len(data) + 1)]
    assert counts == sorted(counts)
    assert counts[-1] == walk(value)
    for end in range(len(data)):
        with pytest.raises(msgspec.DecodeError):
            msgpack.decode(data[:end])


@hypothesis.given(st.binary(max_size=400), st.integers(0, 50))
def test_any_bytes_are_counted_alike_by_both_builds(core: str, data: bytes, most: int) -> None:
    found = count(core, data, most)
    assert found == CORES["interpreted"].objects.count_objects(data, most)
    assert found == min(count(core, data), most + 1)
    assert found <= len(data)


@pytest.mark.parametrize("length", [0, 1, 31, 32, 255, 256, 65535, 65536])
def test_lengths_of_every_width(core: str, length: int) -> None:
    for value in ("x" * length, bytes(length), msgpack.Ext(5, bytes(length)), [None] * length):
        assert count(core, msgpack.encode([value, 1])) == 2 + walk(value)
    table = dict.fromkeys(range(length))
    assert count(core, msgpack.encode([table, 1])) == 3 + 2 * length


def test_it_stops_at_the_limit(core: str) -> None:
    lists = b"\xdd" + struct.pack("!I", 4 << 20) + b"\x90" * (4 << 20)
    assert count(core, lists, 1000) == 1001
    assert count(core, b"\x91" * 100_000 + b"\x90") == 100_001
    assert count(core, b"\xdf\xff\xff\xff\xff" * 1000) == 1000  # lengths without anything behind them


def test_four_mebibytes_of_floats_are_within_the_default(core: str) -> None:
    floats = msgpack.encode([1.5] * (((4 << 20) - 5) // 9))
    assert count(core, floats, MAX_OBJECTS) <= MAX_OBJECTS


def keys_of(value: Any, also: int) -> int:
    """Keys in ``value`` as ``count_keys`` means them, for maps and lists above 256."""
    if isinstance(value, list):
        mine = value if also & SETS and len(value) > 256 else []
        inner = sum(keys_of(v, also) for v in value)
    elif isinstance(value, dict):
        mine = list(value) if len(value) > 256 else []
        inner = sum(keys_of(v, also) for v in value.values())
    else:
        return 0
    return inner + sum(bool(also & STRINGS) or not isinstance(k, (str, bytes)) for k in mine)


LARGE = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.builds(lambda v, n: [v] * n, inner, st.sampled_from([255, 256, 257, 300]))
        | st.builds(
            lambda v, n, k: {k(each): v for each in range(n)},
            inner,
            st.sampled_from([2, 256, 257, 300]),
            st.sampled_from([int, str, float]),
        )
    ),
    max_leaves=3,
)


@hypothesis.given(LARGE, st.sampled_from([0, SETS, STRINGS, SETS | STRINGS]))
@hypothesis.settings(suppress_health_check=list(hypothesis.HealthCheck), max_examples=60, deadline=None)
def test_keys_that_could_collide_are_counted(core: str, value: Any, also: int) -> None:
    data = msgpack.encode(value)
    hypothesis.assume(len(data) < 200_000)
    found = CORES[core].objects.count_keys(data, MOST, also)
    assert found == keys_of(value, also)
    assert CORES[core].objects.count_keys(data, 10, also) == min(found, 11)


@hypothesis.given(st.binary(max_size=400), st.integers(0, 50), st.integers(0, 3))
def test_keys_in_any_bytes_are_counted_alike(core: str, data: bytes, most: int, also: int) -> None:
    data = b"\xde\x02\x00" + data
    found = CORES[core].objects.count_keys(data, most, also)
    assert found == CORES["interpreted"].objects.count_keys(data, most, also)
    assert found <= count(core, data)
