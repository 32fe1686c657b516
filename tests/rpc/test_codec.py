"""Values and bytes: bytes-like ones untouched, others checked, and nothing that a peer sends does harm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st
from msgspec import msgpack
from typing_extensions import Buffer

from aiordma.rpc import codec
from aiordma.rpc.codec import (
    MAX_STRUCTURED_BYTES,
    Encoding,
    Shape,
    decode_result,
    encode_arguments,
    encode_value,
)
from aiordma.rpc.errors import Code, RpcError


@dataclass
class Point:
    x: int
    y: int = 0


class Box(msgspec.Struct):
    corner: Point
    tags: list[str] = []


class Options(TypedDict):
    deep: bool


@pytest.mark.parametrize("value", [b"", b"abc", bytearray(b"abc"), memoryview(b"abc")])
def test_bytes_like_values_travel_as_they_are(value: bytes | bytearray | memoryview) -> None:
    for encoding, payload in (encode_value(value), encode_arguments((value,))):
        assert encoding == Encoding.RAW
        assert payload is value


def test_views_of_other_shapes_become_bytes() -> None:
    _, payload = encode_value(memoryview(b"12345678").cast("I"))
    assert len(payload) == 8
    _, payload = encode_value(memoryview(bytes(range(10)))[::2])
    assert payload == bytes(range(0, 10, 2))


@pytest.mark.parametrize(
    ("value", "returns"),
    [
        (None, None),
        (7, int),
        ("text", str),
        ([1, 2], list[int]),
        (Point(1, 2), Point),
        (Box(Point(1), ["a"]), Box),
        ({"deep": True}, Options),
        ({"a": (1, b"x")}, dict[str, tuple[int, bytes]]),
        (None, bytes | None),
        (b"x", bytes | None),
        (2.5, float | None),
    ],
)
def test_results_come_back_with_their_types(value: object, returns: Any) -> None:
    encoding, payload = encode_value(value)
    back = decode_result(encoding, payload, returns)
    assert back == value
    assert type(back) is type(value)


def test_without_a_type_bytes_are_bytes_and_views_are_asked_for() -> None:
    block = bytearray(b"large")
    view = memoryview(block)
    assert decode_result(0, view) == b"large"
    assert type(decode_result(0, view)) is bytes
    borrowed = decode_result(0, view, memoryview)
    assert isinstance(borrowed, memoryview)
    assert borrowed.obj is block
    assert decode_result(0, view, Buffer) is view
    assert decode_result(0, view, bytes | memoryview) is view
    assert type(decode_result(0, view, bytearray)) is bytearray


def test_a_view_inside_a_structure_is_not_copied() -> None:
    block = bytearray(msgpack.encode([b"x" * 100]))
    (inner,) = decode_result(1, memoryview(block), tuple[memoryview])
    assert inner.obj is block


@pytest.mark.parametrize(
    ("encoding", "payload", "returns", "message"),
    [
        (1, msgpack.encode("x"), int, "the result: expected `int`, got `str`"),
        (1, msgpack.encode({"x": 1, "y": "2"}), Point, "the result at .y: expected `int`, got `str`"),
        (0, b"raw", Point, "the result: expected `Point`, got `bytes`"),
        (0, b"toolong", Annotated[bytes, msgspec.Meta(max_length=3)], "of length <= 3"),
        (1, b"\x92\x01", list[int], "truncated"),
        (9, b"", None, "encoding 9 is not known"),
        (1, b"\x91" * 100_000, None, "nested too deeply"),
        (1, b"\xdd\xff\xff\xff\xff", None, "truncated"),
    ],
)
def test_a_result_of_another_type_is_an_error_of_the_server(
    encoding: int, payload: bytes, returns: Any, message: str
) -> None:
    with pytest.raises(RpcError) as caught:
        decode_result(encoding, payload, returns)
    assert caught.value.code is Code.INTERNAL
    assert message in caught.value.message


def test_long_structures_are_refused_and_long_bytes_are_not() -> None:
    payload = msgpack.encode([b"x" * MAX_STRUCTURED_BYTES])
    with pytest.raises(RpcError) as caught:
        decode_result(1, payload, list[bytes])
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    assert Shape(bytes).limit is None
    assert Shape(str | None).limit is None
    for hint in (Any, list[int], Point, Box, dict, Options):
        assert Shape(hint).limit == MAX_STRUCTURED_BYTES, hint
    flat = msgpack.encode(b"x" * (MAX_STRUCTURED_BYTES + 1))
    assert len(decode_result(1, flat, bytes)) == MAX_STRUCTURED_BYTES + 1


def _recursive() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    "value", [object(), 1 << 70, {1: lambda: 0}, _recursive()], ids=["object", "int", "lambda", "loop"]
)
def test_what_cannot_travel_is_said_at_once(value: object) -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        encode_value(value)
    with pytest.raises(TypeError, match="cannot be sent"):
        encode_arguments((), {"x": value})


class Opaque:
    pass


@pytest.mark.parametrize("hint", [Opaque, list[Opaque], str | bytes], ids=str)
def test_types_that_cannot_be_checked_are_refused(hint: Any) -> None:
    with pytest.raises(TypeError, match="type "):
        Shape(hint)


def test_types_are_described_as_they_are_written() -> None:
    describe = codec.describe_type
    assert describe(dict[str, list[Point]]) == "dict[str, list[Point]]"
    assert describe(Point | None) == "Point | None"
    assert describe(tuple[int, ...]) == "tuple[int, ...]"
    assert describe(Annotated[bytes, 1]) == "bytes"
    assert describe(Any) == "Any"


def test_constraints_with_unhashable_parts_work() -> None:
    hint = Annotated[list[int], msgspec.Meta(examples=[[1]])]
    assert decode_result(1, msgpack.encode([1]), hint) == [1]


TYPES = [None, bytes, memoryview, int, str, list[int], dict[str, Any], Point, Box, Options, tuple[bytes, int]]


@hypothesis.given(st.integers(0, 3), st.binary(max_size=200), st.sampled_from(TYPES))
def test_any_bytes_give_a_value_or_an_rpc_error(encoding: int, payload: bytes, returns: Any) -> None:
    for buffer in (payload, memoryview(bytearray(payload))):
        try:
            decode_result(encoding, buffer, returns)
        except RpcError:
            continue


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.text()
    | st.binary()
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@hypothesis.given(VALUES)
def test_builtin_values_come_back_equal(value: object) -> None:
    assert decode_result(*encode_value(value)) == value
