"""Arrays as arguments, results and items, and large bytes beside others: what travels, what is checked."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import AsyncIterator  # annotations of handlers
from typing import Any

import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import msgpack

from aiordma import rpc
from aiordma.rpc.bulk import BULK_BYTES, Bulk
from aiordma.rpc.codec import Encoding, decode_result, encode_arguments, encode_value
from aiordma.rpc.errors import Code, RpcError
from aiordma.testing.rpc import rpc_pair
from tests.arrays import numpy as np
from tests.world import FULL_PATIENCE

BULK = Encoding.BULK
ARRAYS = [
    np.arange(12, dtype="<f4").reshape(3, 4),
    np.arange(12, dtype=">f8").reshape(3, 4),
    np.arange(12, dtype="<i8")[::3],
    np.arange(12, dtype="<u2").reshape(3, 4).T,
    np.array([[True, False]]),
    np.array([1 + 2j, 3], dtype="<c16"),
    np.zeros((2, 0, 3), dtype="<f2"),
    np.ones((1,) * 8, dtype="|i1"),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype.str}{a.shape}")
def test_results_come_back_as_they_were(array: Any) -> None:
    encoding, payload = encode_value(array)
    assert encoding == BULK
    assert isinstance(payload, Bulk)
    head, body = payload.behind(b"")
    for sent in (payload, head + bytes(body), memoryview(head + bytes(body))):
        for returns in (None, np.ndarray, npt.NDArray[array.dtype.type], np.ndarray | None):
            back = decode_result(encoding, sent, returns)
            assert type(back) is np.ndarray
            assert back.dtype == array.dtype
            assert back.shape == array.shape
            assert (back == array).all()


def test_an_array_is_neither_copied_nor_packed_when_it_is_sent() -> None:
    array = np.zeros((256, 256))
    for _, payload in (encode_value(array), encode_arguments((1, array), {"x": 2})):
        assert isinstance(payload, Bulk)
        assert np.shares_memory(np.frombuffer(payload.data), array)


def test_a_received_array_is_a_view() -> None:
    head, body = encode_value(np.arange(100.0))[1].behind(b"")  # type: ignore[union-attr]
    received = memoryview(head + bytes(body))
    back = decode_result(BULK, received, np.ndarray)
    assert np.shares_memory(back, np.frombuffer(received, "u1"))
    assert not back.flags.writeable


class Method:
    """What its arguments become."""

    def __init__(self, handler: Any) -> None:
        service = rpc.Service("s")
        self.decode = service.add(handler, name="m").decode

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.decode(*encode_arguments(args, kwargs))


def test_one_of_several_arguments() -> None:
    def put(key: str, block: npt.NDArray[np.float32], scale: float = 2.0, *, flag: bool = False) -> None:
        """Not called."""

    method = Method(put)
    block = np.arange(6, dtype=np.float32)
    for args, kwargs in (
        ((("k"), block), {}),
        (("k",), {"block": block}),
        ((), {"block": block, "key": "k"}),
    ):
        given, named = method(*args, **kwargs)
        assert given[0] == "k"
        assert (given[1] == block).all()
        assert (given[2], named) == (2.0, {})
    assert method("k", block, flag=True)[1] == {"flag": True}


@pytest.mark.parametrize("large", [bytes(BULK_BYTES), bytearray(BULK_BYTES), memoryview(bytes(BULK_BYTES))])
def test_large_bytes_beside_other_arguments_are_not_packed(large: Any) -> None:
    def put(key: int, data: memoryview) -> None:
        """Not called."""

    encoding, payload = encode_arguments((1, large))
    assert encoding == BULK
    assert encode_arguments((1, bytes(large)[:-1]))[0] == Encoding.MSGPACK
    assert encode_arguments((large,))[0] == Encoding.RAW
    (key, data), _ = Method(put)(1, large)
    assert (key, data) == (1, large)
    assert len(payload) < BULK_BYTES + 50


def test_the_limit_of_structured_values_does_not_hold_for_the_bytes() -> None:
    def put(data: bytes, names: list[str]) -> None:
        """Not called."""

    (data, names), _ = Method(put)(bytes(5 << 20), ["a"])
    assert (len(data), names) == (5 << 20, ["a"])
    with pytest.raises(RpcError, match="at most") as caught:
        Method(put)(bytes(BULK_BYTES), ["a" * 1000] * 5000)
    assert caught.value.code is Code.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.array(["a"]), "type '<U1'"),
        (np.array([{}], dtype=object), "type '|O'"),
        (np.zeros(1, dtype=[("a", "<i4")]), "cannot be sent"),
        ([np.zeros(3)], "cannot be sent"),
        (np.float32(1).reshape(()), "cannot be sent"),
    ],
    ids=str,
)
def test_what_is_not_sent(value: Any, text: str) -> None:
    with pytest.raises(TypeError, match=re.escape(text)):
        encode_value(value)
    with pytest.raises(TypeError, match=re.escape(text)):
        encode_arguments((value, 1))


def test_two_arrays_in_one_call_are_refused() -> None:
    with pytest.raises(TypeError, match="2 arrays as arguments of one call"):
        encode_arguments((np.zeros(3), np.zeros(3)))


def test_arrays_inside_of_other_types_are_refused_when_the_method_is_registered() -> None:
    def put(blocks: list[np.ndarray]) -> None:
        """Not called."""

    with pytest.raises(TypeError, match="an array is an argument, a result or an item by itself"):
        rpc.Service("s").add(put)


def _bulk(description: Any, data: bytes) -> bytes:
    raw = msgpack.encode(description)
    return len(raw).to_bytes(4, "big") + raw + data


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"", "cut off"),
        (b"\0\0\0\xff", "cut off"),
        (_bulk(["<f4", [3]], bytes(11)), "11 bytes for an array"),
        (_bulk(["<f4", [3]], bytes(13)), "13 bytes for an array"),
        (_bulk(["<f4", [-1, -3]], bytes(12)), "shape"),
        (_bulk(["<f4", [1 << 62, 4]], bytes(12)), "shape"),
        (_bulk(["<f4", []], bytes(4)), "shape"),
        (_bulk(["<f4", [1] * 33], bytes(4)), "shape"),
        (_bulk(["|O8", [1]], bytes(8)), "not sent"),
        (_bulk(["<M8[ns]", [1]], bytes(8)), "not sent"),
        (_bulk(["<f4,<f4", [1]], bytes(8)), "not sent"),
        (_bulk(["<f3", [1]], bytes(3)), "not sent"),
        (_bulk(["<f8", [2]], bytes(16)), "got an array of float64"),
        (_bulk({"a": 1}, b""), "xpected"),
        (_bulk([1, [1]], b""), "xpected"),
    ],
)
def test_a_peer_that_lies_about_an_array(payload: bytes, text: str) -> None:
    with pytest.raises(RpcError) as caught:
        decode_result(BULK, payload, npt.NDArray[np.float32])
    assert caught.value.code is Code.INTERNAL  # the server's fault
    assert text in caught.value.message


@pytest.mark.parametrize(
    ("description", "text"),
    [
        ([[None], {}, 1, None, None], "none of those"),
        ([[None], {}, -1, None, None], "none of those"),
        ([[None], {}, "other", None, None], "none of those"),
        ([[None], {}, 0, None, None], "Expected `ndarray`, got `bytes`".lower()),
        ([[None], {}, 0, "<f4", None], "shape"),
        ([[None], {}, 0, None, [4]], "not sent"),
        ([[None, None], {}, 0, "<f4", [4]], "got 2 by position"),
        ([[], {"block": None, "x": 1}, "block", "<f4", [4]], "has no argument 'x'"),
        ([[], {"x": 1}, "x", "<f4", [4]], "has no argument 'x'"),
        ([[b"123"], {}, 0, "<f4", [5]], "16 bytes for an array"),
    ],
)
def test_a_client_that_lies_about_its_arguments(description: Any, text: str) -> None:
    def put(block: np.ndarray) -> None:
        """Not called."""

    with pytest.raises(RpcError) as caught:
        Method(put).decode(BULK, _bulk(description, bytes(16)))
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert text in caught.value.message.lower()


@given(st.binary(max_size=60))
@settings(deadline=None)
def test_any_bytes_are_an_error_or_a_value(payload: bytes) -> None:
    def put(key: int, block: np.ndarray | None = None) -> None:
        """Not called."""

    method = Method(put)
    for decode in (lambda: decode_result(BULK, payload), lambda: method.decode(BULK, payload)):
        code = Code.OK
        try:
            decode()
        except RpcError as error:
            code = error.code
        assert code in (Code.OK, Code.INVALID_ARGUMENT, Code.INTERNAL)


def test_bytes_and_other_values_are_no_arrays() -> None:
    def put(block: np.ndarray) -> None:
        """Not called."""

    def maybe(block: np.ndarray | None = None) -> None:
        """Not called."""

    for value in (b"1234", "text", None, [1.0]):
        with pytest.raises(RpcError, match="'block'"):
            Method(put)(value)
    assert Method(maybe)(None) == ([None], {})
    assert Method(maybe)() == ([None], {})
    with pytest.raises(RpcError, match="ndarray"):
        Method(maybe)(3)


@pytest.mark.anyio
async def test_in_every_kind_of_call() -> None:
    service = rpc.Service("a")

    @service.method
    async def scale(block: npt.NDArray[np.float64], by: float) -> npt.NDArray[np.float64]:
        return block * by

    @service.method
    async def rows(block: np.ndarray) -> AsyncIterator[np.ndarray]:
        for row in block:
            yield row

    @service.method
    async def total(items: AsyncIterator[np.ndarray]) -> float:
        return float(sum([item.sum() async for item in items]))

    block = np.arange(20_000.0).reshape(4, -1)
    async with rpc_pair(service) as pair:
        for _ in range(2):
            scaled = await pair.client.call("a.scale", block, 3.0, returns=np.ndarray)
            assert (scaled == block * 3).all()
        async with pair.client.stream("a.rows", block) as items:
            assert [item.shape async for item in items] == [(5000,)] * 4
        async with pair.client.stream("a.total", returns=float) as stream:
            for row in block:
                await stream.send(row)
            assert await stream.result() == block.sum()
        with pytest.raises(RpcError, match="'block'") as caught:
            await pair.client.call("a.scale", block.astype(int), 3.0)
        assert caught.value.code is Code.INVALID_ARGUMENT
        # more beside it than the head of a message has room for
        with pytest.raises(RpcError, match="'by'"):
            await pair.client.call("a.scale", block, "x" * 1000)


def test_a_program_without_numpy_gets_views_with_a_shape() -> None:
    program = """
import sys
from aiordma.rpc.codec import Encoding, decode_result
from msgspec import msgpack

def bulk(kind, shape, data):
    raw = msgpack.encode([kind, shape])
    return len(raw).to_bytes(4, "big") + raw + data

view = decode_result(3, bulk("<f4", [2, 3], bytes(24)))
assert type(view) is memoryview and (view.format, view.shape) == ("f", (2, 3)), view
assert decode_result(3, bulk("|b1", [2], b"\\0\\1")).tolist() == [False, True]
assert decode_result(3, bulk("<f4", [0, 3], b"")).nbytes == 0
try:
    decode_result(3, bulk("<c8", [1], bytes(8)))
except Exception as error:
    assert "has not imported numpy" in str(error), error
else:
    raise AssertionError
assert "numpy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=2 * FULL_PATIENCE)
