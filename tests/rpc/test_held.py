"""What messages cost beyond their objects: keys that collide, metadata of many entries, many at once."""

from __future__ import annotations

import struct
import time
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import anyio
import pytest
from msgspec import msgpack

from aiordma import rpc
from aiordma.config import Config
from aiordma.proto.errors import RemoteProtocolError
from aiordma.proto.metadata import decode_metadata, encode_metadata
from aiordma.proto.objects import MAX_OBJECTS, SETS, STRINGS
from aiordma.rpc import codec
from aiordma.rpc.codec import Encoding, decode_result
from aiordma.rpc.counted import check_objects
from aiordma.testing.rpc import RpcPair, rpc_pair
from tests.health import until
from tests.tuned import tuned

pytestmark = pytest.mark.anyio

#: Keys, and objects of all calls, that the tests' ends allow.
KEYS = 2000
HELD = 5000


class Gate:
    """Handlers that hold what they were given until they are let go."""

    def __init__(self) -> None:
        self.open = anyio.Event()
        self.inside = 0

    def service(self) -> rpc.Service:
        made = rpc.Service("g")

        @made.method
        async def wait(value: Any) -> int:
            self.inside += 1
            await self.open.wait()
            return len(value)

        @made.method
        async def items(values: AsyncIterator[Any]) -> int:
            count = 0
            async for _ in values:
                count += 1
                self.inside += 1
            await self.open.wait()
            return count

        @made.method
        def size(value: Any) -> int:
            return len(value)

        @made.method
        def some(value: dict[Decimal, int] | set[int]) -> int:
            return len(value)

        @made.method
        def numbers(value: list[int]) -> int:
            return len(value)

        @made.method
        async def sizes(values: AsyncIterator[Any]) -> int:
            return sum([len(value) async for value in values])

        @made.method
        def make(count: int) -> dict[int, None]:
            return dict.fromkeys(range(count))

        @made.method
        async def makes(count: int) -> AsyncIterator[dict[int, None]]:
            yield dict.fromkeys(range(count))

        return made


def colliding(count: int) -> list[int]:
    """Numbers of which a ``dict`` finds the later ones only after a walk past many of the earlier ones."""
    bits = (count * 3 // 2).bit_length()
    mask = (1 << bits) - 1
    first, at = count * 6 // 10, 1
    walk: list[int] = []
    for _ in range(first):
        walk.append(at)
        at = 5 * at + 1 & mask
    place = {slot: number for number, slot in enumerate(walk)}
    found: list[int] = []
    for high in range(1, 1 << 13):
        for slot in walk[::7]:
            number = rest = slot | high << bits
            where = slot
            while rest and where in place:
                rest >>= 5
                where = 5 * where + rest + 1 & mask
            if not rest and place.get(where, count) < first // 3:
                found.append(number)
                if len(found) == count - first:
                    return walk + found
    raise AssertionError("not enough")


def mapping(keys: list[Any]) -> bytes:
    """Arguments: one map with these keys, one after the other, as no honest encoder would make it."""
    return b"\x91\xdf" + struct.pack("!I", len(keys)) + b"".join(msgpack.encode(k) + b"\xc0" for k in keys)


async def raw(pair: RpcPair, method: str, payload: bytes) -> Any:
    reply = await pair.client.connection.call_raw(method, Encoding.MSGPACK, payload, 60.0, None)
    return decode_result(reply.encoding, reply.payload)


def refused(error: rpc.RpcError, setting: str, limit: int) -> None:
    assert error.code is rpc.Code.RESOURCE_EXHAUSTED
    assert setting in error.message
    assert str(limit) in error.message


def test_numbers_that_collide_cost_far_more_than_others() -> None:
    """What the bound is for. (A factor of CPU times, with room: it is about 60.)"""
    spent = []
    for keys in (list(range(10_900)), colliding(10_900)):
        payload = mapping(keys)[1:]
        began = time.thread_time()
        assert len(msgpack.decode(payload)) == len(keys)
        spent.append(time.thread_time() - began)
    assert spent[1] > 4 * spent[0]


REFUSED = {
    "numbers": ("g.size", mapping(list(range(KEYS + 1)))),
    "floats": ("g.size", mapping([n + 0.5 for n in range(KEYS + 1)])),
    "tuples": ("g.size", mapping([[n] for n in range(KEYS + 1)])),
    "inside": ("g.size", b"\x91\x92\x01" + mapping(list(range(KEYS + 1)))[1:]),
    "two maps": ("g.size", b"\x91\x92" + 2 * mapping(list(range(KEYS // 2 + 1)))[1:]),
    "cut off": ("g.size", mapping(list(range(KEYS + 1)))[:-1]),
    "announced": ("g.size", b"\x91\xdf\xff\xff\xff\xff" + mapping(list(range(KEYS + 1)))[6:]),
    "of a set": ("g.some", msgpack.encode([list(range(KEYS + 1))])),
    "decimals": ("g.some", mapping([str(n) for n in range(KEYS + 1)])),
}


@pytest.mark.parametrize("form", REFUSED)
async def test_many_keys_that_could_collide(form: str) -> None:
    method, payload = REFUSED[form]
    async with rpc_pair(Gate().service(), max_message_keys=KEYS) as pair:
        with pytest.raises(rpc.RpcError) as caught:
            await raw(pair, method, payload)
        refused(caught.value, "max_message_keys", KEYS)
        assert await pair.client.call("g.size", {1: 2}) == 1


@pytest.mark.parametrize(
    ("also", "why"),
    [
        (0, "as a list of pairs"),
        (SETS, "has sets"),
        (STRINGS, "of strings"),
        (SETS | STRINGS, "sets, and keys"),
    ],
)
def test_the_error_says_why_a_list_or_strings_count(also: int, why: str) -> None:
    """A list of numbers is no map: to send it as a list would be no advice."""
    keys: list[Any] = list(range(KEYS + 1)) if not also & STRINGS else [str(n) for n in range(KEYS + 1)]
    payload = msgpack.encode(keys if also & SETS else dict.fromkeys(keys))
    with pytest.raises(rpc.RpcError, match=why) as caught:
        check_objects(Encoding.MSGPACK, payload, MAX_OBJECTS, KEYS, also, "it")
    refused(caught.value, "max_message_keys", KEYS)
    assert ("list of pairs" in caught.value.message) == (not also)


async def test_keys_that_cannot_be_chosen_to_collide() -> None:
    async with rpc_pair(Gate().service(), max_message_keys=KEYS) as pair:
        call = pair.client.call
        assert await call("g.size", dict.fromkeys(range(KEYS))) == KEYS
        assert await call("g.size", {str(n): n for n in range(3 * KEYS)}) == 3 * KEYS
        assert await call("g.size", {str(n).encode(): n for n in range(3 * KEYS)}) == 3 * KEYS
        assert await call("g.size", [{n: n} for n in range(3 * KEYS)]) == 3 * KEYS  # each map is small
        assert await call("g.numbers", list(range(3 * KEYS))) == 3 * KEYS
        assert await call("g.some", list(range(KEYS))) == KEYS


async def test_keys_of_results_and_items() -> None:
    async with rpc_pair(Gate().service(), max_message_keys=KEYS) as pair:
        pair.client.connection.most_keys = KEYS
        assert len(await pair.client.call("g.make", KEYS)) == KEYS
        with pytest.raises(rpc.RpcError) as caught:
            await pair.client.call("g.make", KEYS + 1)
        refused(caught.value, "max_message_keys", KEYS)
        async with pair.client.stream("g.makes", KEYS + 1) as stream:
            with pytest.raises(rpc.RpcError) as caught:
                await stream.receive()
        refused(caught.value, "max_message_keys", KEYS)
        async with pair.client.stream("g.sizes") as stream:
            await stream.send(dict.fromkeys(range(KEYS + 1)))
            with pytest.raises(rpc.RpcError) as caught:
                await stream.result()
        refused(caught.value, "max_message_keys", KEYS)


async def test_calls_in_flight_have_a_bound_on_their_sum() -> None:
    gate = Gate()
    value: list[Any] = [[]] * (HELD // 2 - 2)  # with the two lists around them: half of what is allowed
    results: list[int] = []

    async with (
        rpc_pair(gate.service(), max_connection_objects=HELD) as pair,
        anyio.create_task_group() as group,
    ):

        async def call() -> None:
            results.append(await pair.client.call("g.wait", value))

        group.start_soon(call)
        group.start_soon(call)
        await until(lambda: gate.inside == 2)
        for method in ("g.wait", "g.size"):
            with pytest.raises(rpc.RpcError) as caught:
                await pair.client.call(method, value)
            refused(caught.value, "max_connection_objects", HELD)
            assert method in caught.value.message
        assert await pair.client.call("g.size", [1, 2]) == 2  # a short one
        assert await pair.client.call("g.size", bytes(100_000)) == 100_000
        gate.open.set()
        await until(lambda: len(results) == 2)
        for _ in range(5):  # what has ended counts no more, nor does what was refused
            assert await pair.client.call("g.size", value) == len(value)
    assert results == [len(value)] * 2


async def test_one_item_of_each_stream_counts() -> None:
    gate = Gate()
    item: list[Any] = [[]] * (HELD // 2 - 1)
    async with rpc_pair(gate.service(), max_connection_objects=HELD) as pair:
        async with pair.client.stream("g.items") as first, pair.client.stream("g.items") as second:
            for _ in range(3):
                await first.send(item)
                await second.send(item)
            await until(lambda: gate.inside == 6)
            with pytest.raises(rpc.RpcError) as caught:
                await pair.client.call("g.size", item)
            refused(caught.value, "max_connection_objects", HELD)
            await first.send([1])  # its last item is a short one now
            await until(lambda: gate.inside == 7)
            assert await pair.client.call("g.size", item[:-2]) == len(item) - 2
            gate.open.set()
            assert await first.result() == 4
            assert await second.result() == 3
        assert await pair.client.call("g.size", item) == len(item)


async def test_a_stream_whose_item_is_refused_fails_alone() -> None:
    gate = Gate()
    value: list[Any] = [[]] * (HELD - 2)
    async with rpc_pair(gate.service(), max_connection_objects=HELD) as pair:
        async with pair.client.stream("g.items") as one, pair.client.stream("g.items") as other:
            await one.send(value)
            await until(lambda: gate.inside == 1)
            await other.send(value)
            with pytest.raises(rpc.RpcError) as caught:
                await other.result()
            refused(caught.value, "max_connection_objects", HELD)
            gate.open.set()
            assert await one.result() == 1


async def test_metadata_of_many_entries() -> None:
    def entries(count: int) -> bytes:
        return b"".join(struct.pack("!BBH", 1, 4, 0) + b"%04x" % n for n in range(count))

    assert len(decode_metadata(entries(512))) == 512
    with pytest.raises(RemoteProtocolError, match="512"):
        decode_metadata(entries(513))
    with pytest.raises(ValueError, match="512"):
        encode_metadata({f"{n}": b"" for n in range(513)})
    made = rpc.Service("m")

    @made.method
    def count(context: rpc.Context) -> int:
        return len(context.metadata)

    async with rpc_pair(made) as pair:
        for number in (512, 513):
            sent = pair.client.connection.call_raw("m.count", 1, b"\x90", 60.0, entries(number))
            if number == 512:
                assert decode_result(1, (await sent).payload) == 512
                continue
            with pytest.raises(rpc.RpcError, match="512") as caught:
                await sent
            assert caught.value.code is rpc.Code.INVALID_ARGUMENT
        assert await pair.client.call("m.count") == 0


async def test_a_result_that_cannot_exceed_its_limits_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key and each object has a byte. To count them takes up to half as long as to decode them."""
    counted: list[int] = []

    def check(encoding: int, payload: bytes, *_: object) -> int:
        counted.append(len(payload))
        return 1

    monkeypatch.setattr(codec, "check_objects", check)
    value = [0] * (KEYS - 3)
    payload = msgpack.encode(value)
    assert len(payload) == KEYS
    for objects, keys in ((KEYS, KEYS), (KEYS - 1, KEYS), (KEYS, KEYS - 1)):
        assert decode_result(Encoding.MSGPACK, payload, None, "it", objects, keys) == value
    assert counted == [KEYS] * 2


async def test_the_settings_reach_both_ends() -> None:
    config = tuned(max_message_keys=KEYS, max_connection_objects=HELD)
    async with (
        rpc.serve(Gate().service(), "127.0.0.1", config=config, mode="tcp") as server,
        rpc.connect("127.0.0.1", server.port, config=config, mode="tcp") as client,
    ):
        for method, value, setting in (
            ("g.size", dict.fromkeys(range(KEYS + 1)), "max_message_keys"),
            ("g.make", KEYS + 1, "max_message_keys"),
            ("g.size", [[]] * HELD, "max_connection_objects"),
        ):
            with pytest.raises(rpc.RpcError, match=setting) as caught:
                await client.call(method, value)
            assert caught.value.code is rpc.Code.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("name", ["max_message_objects", "max_message_keys", "max_connection_objects"])
async def test_limits_that_are_none(name: str) -> None:
    for limit in (0, 1 << 40):
        wrong: dict[str, Any] = {name: limit}
        if name == "max_message_objects":  # the others follow from it
            with pytest.raises(ValueError, match=name):
                Config(**wrong)
        with pytest.raises(ValueError, match=name):
            rpc.Server(Gate().service(), **wrong)
