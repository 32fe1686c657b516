"""Messages of very many objects: both ends refuse them before decoding, and the connection goes on."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import msgpack

from aiordma import rpc
from aiordma.config import Config
from aiordma.rpc import arguments
from aiordma.rpc.bulk import Bulk
from aiordma.rpc.codec import Encoding, decode_result
from aiordma.testing.rpc import RpcPair, rpc_pair

pytestmark = pytest.mark.anyio

#: Objects that the tests' ends allow.
MOST = 2000


def empty(what: bytes, count: int) -> bytes:
    """A list of ``count`` values that are the bytes ``what``."""
    return b"\xdd" + struct.pack("!I", count) + what * count


def service() -> rpc.Service:
    made = rpc.Service("o")

    @made.method
    def size(value: Any) -> int:
        return len(value)

    @made.method
    def number(value: int, more: int = 0) -> int:
        return value + more

    @made.method
    def large(data: memoryview, value: list) -> int:  # type: ignore[type-arg]
        return len(data) + len(value)

    @made.method
    async def sizes(values: AsyncIterator[list]) -> int:  # type: ignore[type-arg]
        return sum([len(value) async for value in values])

    @made.method
    def make(count: int) -> list:  # type: ignore[type-arg]
        return [[]] * count

    @made.method
    async def makes(count: int) -> AsyncIterator[list]:  # type: ignore[type-arg]
        yield [[]] * count

    return made


class CutOff(Bulk):
    """A description that is said to be longer than the message."""

    def __init__(self) -> None:
        super().__init__(b"", bytes(MOST))

    def behind(self, head: bytes) -> tuple[bytes, bytes]:
        return head + b"\xff\xff\xff\xff", bytes(MOST)


async def raw(pair: RpcPair, method: str, encoding: int, payload: Any) -> Any:
    """A call with this payload."""
    reply = await pair.client.connection.call_raw(method, encoding, payload, 60.0, None)
    return decode_result(reply.encoding, reply.payload)


def refused(error: rpc.RpcError) -> None:
    assert error.code is rpc.Code.RESOURCE_EXHAUSTED
    assert "max_message_objects" in error.message
    assert str(MOST) in error.message


ARGUMENTS = {
    "lists": (Encoding.MSGPACK, b"\x91" + empty(b"\x90", MOST)),
    "nested": (Encoding.MSGPACK, b"\x91" + empty(b"\x91\x91\x90", MOST // 2)),
    "maps": (Encoding.MSGPACK, b"\x91" + empty(b"\x81\x01\x80", MOST // 2)),
    "equal keys": (Encoding.MSGPACK, b"\x91\xdf" + struct.pack("!I", MOST) + b"\x01\x02" * MOST),
    "by keyword": (Encoding.KEYWORDS, b"\x92\x90\x81\xa5value" + empty(b"\x90", MOST)),
    "by position and keyword": (Encoding.KEYWORDS, b"\x92" + empty(b"\x90", MOST) + b"\x80"),
}


@pytest.mark.parametrize("form", ARGUMENTS)
@pytest.mark.parametrize("method", ["o.size", "o.number"])
async def test_arguments_of_too_many_objects(form: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(*given: object) -> None:
        raise AssertionError("it was decoded")

    async with rpc_pair(service(), max_message_objects=MOST) as pair:
        with monkeypatch.context() as patched:
            patched.setattr(arguments.Decode, "arguments", decode)
            with pytest.raises(rpc.RpcError) as caught:
                await raw(pair, method, *ARGUMENTS[form])
        refused(caught.value)
        assert method in caught.value.message
        assert await pair.client.call("o.size", [1, 2]) == 2


async def test_four_mebibytes_of_empty_lists_are_refused_by_default() -> None:
    async with rpc_pair(service(), channel={"max_message_bytes": 8 << 20, "receive_bytes": 16 << 20}) as pair:
        for _ in range(12):
            with pytest.raises(rpc.RpcError, match="max_message_objects") as caught:
                await raw(pair, "o.size", Encoding.MSGPACK, b"\x91" + empty(b"\x90", (4 << 20) - 6))
            assert caught.value.code is rpc.Code.RESOURCE_EXHAUSTED


async def test_just_as_many_as_allowed() -> None:
    async with rpc_pair(service(), max_message_objects=MOST) as pair:
        # The list of the arguments, and the list that is one, count as well.
        assert await raw(pair, "o.size", Encoding.MSGPACK, b"\x91" + empty(b"\x90", MOST - 2)) == MOST - 2
        with pytest.raises(rpc.RpcError) as caught:
            await raw(pair, "o.size", Encoding.MSGPACK, b"\x91" + empty(b"\x90", MOST - 1))
        refused(caught.value)
        for value in ("x" * MOST * 3, [b"x" * MOST * 3]):
            assert await pair.client.call("o.size", value) == len(value)


async def test_beside_a_large_argument() -> None:
    async with rpc_pair(service(), max_message_objects=MOST) as pair:
        assert await pair.client.call("o.large", bytes(100_000), [1]) == 100_001
        with pytest.raises(rpc.RpcError) as caught:
            await pair.client.call("o.large", bytes(100_000), [[]] * MOST)
        refused(caught.value)
        with pytest.raises(rpc.RpcError) as caught:  # a description that is cut off
            await raw(pair, "o.large", Encoding.BULK, CutOff())
        assert caught.value.code is rpc.Code.INVALID_ARGUMENT


async def test_items_and_results() -> None:
    async with rpc_pair(service(), max_message_objects=MOST) as pair:
        async with pair.client.stream("o.sizes") as stream:
            await stream.send([1])
            await stream.send([[]] * MOST)
            with pytest.raises(rpc.RpcError) as caught:
                await stream.result()
        refused(caught.value)
        pair.client.connection.most_objects = MOST
        assert len(await pair.client.call("o.make", MOST - 1)) == MOST - 1
        with pytest.raises(rpc.RpcError) as caught:
            await pair.client.call("o.make", MOST)
        refused(caught.value)
        async with pair.client.stream("o.makes", MOST) as stream:
            with pytest.raises(rpc.RpcError) as caught:
                await stream.receive()
        refused(caught.value)
        assert await pair.client.call("o.number", 7) == 7


def test_the_description_of_an_array_is_short() -> None:
    shape = b"\x92\xa3<f4" + empty(b"\x01", 1 << 16)
    with pytest.raises(rpc.RpcError, match="describe an array") as caught:
        decode_result(Encoding.BULK, Bulk(shape, b""))
    assert caught.value.code is rpc.Code.INTERNAL


@pytest.mark.parametrize("end", [0, 1, 5, 6, 7, 3000])
def test_what_is_cut_off_is_reported_by_the_decoder(end: int) -> None:
    payload = empty(b"\x92\x01\xa3abc", MOST // 4)[:end]
    with pytest.raises(rpc.RpcError, match="truncated") as caught:
        decode_result(Encoding.MSGPACK, payload, most_objects=MOST)
    assert caught.value.code is rpc.Code.INTERNAL


async def test_the_setting_reaches_both_ends() -> None:
    config = Config(max_message_objects=MOST)
    async with (
        rpc.serve(service(), "127.0.0.1", config=config, mode="tcp") as server,
        rpc.connect("127.0.0.1", server.port, config=config, mode="tcp") as client,
    ):
        for method, value in (("o.size", [[]] * MOST), ("o.make", MOST)):
            with pytest.raises(rpc.RpcError) as caught:
                await client.call(method, value)
            refused(caught.value)


def test_limits_that_are_none() -> None:
    for wrong in (0, 1 << 40):
        with pytest.raises(ValueError, match="max_message_objects"):
            Config(max_message_objects=wrong)


def test_a_message_of_floats_is_as_long_as_before() -> None:
    payload = msgpack.encode([1.5] * 460_000)
    assert len(decode_result(Encoding.MSGPACK, payload, list[float])) == 460_000
