"""redis-py and valkey-py by RDMA to an unmodified valkey-server, as their users write it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
import redis
import redis.asyncio

from aiordma.integrations import redis as on_redis
from aiordma.integrations import valkey as on_valkey
from tests.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from demolib.valkey import Valkey

pytestmark = pytest.mark.anyio

CLIENTS = {"redis-py": on_redis.from_url, "valkey-py": on_valkey.from_url}
MEGABYTE = 1 << 20


@pytest.fixture(params=[(name, protocol) for name in CLIENTS for protocol in (2, 3)], ids=str)
async def client(request: pytest.FixtureRequest, valkey: Valkey) -> AsyncIterator[Any]:
    name, protocol = request.param
    made = CLIENTS[name](f"valkey+rdma://127.0.0.1:{valkey.rdma_port}", protocol=protocol)
    await made.flushall()
    yield made
    await made.aclose()


@pytest.fixture
async def by_tcp(valkey: Valkey) -> AsyncIterator[redis.asyncio.Redis]:
    made = redis.asyncio.Redis(port=valkey.tcp_port)
    yield made
    await made.aclose()


def url(valkey: Valkey) -> str:
    return f"valkey+rdma://127.0.0.1:{valkey.rdma_port}"


async def test_commands(client: Any, by_tcp: Any) -> None:
    assert await client.ping()
    assert await client.set("key", b"value\0\r\n")
    assert await by_tcp.get("key") == b"value\0\r\n"
    assert await client.rpush("list", *range(1000)) == 1000
    assert [int(item) for item in await client.lrange("list", 0, -1)] == list(range(1000))
    assert await client.hset("hash", mapping={"a": 1, "b": 2}) == 2
    assert await client.hgetall("hash") == {b"a": b"1", b"b": b"2"}
    assert await client.eval("return {1, {2, 'x'}}", 0) == [1, [2, b"x"]]
    with pytest.raises(Exception, match="WRONGTYPE"):
        await client.incr("list")
    assert await client.get("nothing") is None


async def test_pipelines_and_transactions(client: Any) -> None:
    async with client.pipeline(transaction=False) as pipe:
        for number in range(5000):
            pipe.set(f"key:{number}", number)
            pipe.get(f"key:{number}")
        answers = await pipe.execute()
    assert answers[1::2] == [str(number).encode() for number in range(5000)]
    async with client.pipeline(transaction=True) as pipe:
        pipe.incr("n")
        pipe.incr("n")
        assert await pipe.execute() == [1, 2]


@pytest.mark.parametrize("size", [1, 65_535, MEGABYTE - 1, MEGABYTE, MEGABYTE + 1, 5 * MEGABYTE + 17])
async def test_values(client: Any, by_tcp: Any, size: int) -> None:
    value = random.Random(size).randbytes(size)
    assert await client.set("value", value)
    assert await by_tcp.get("value") == value
    assert await client.get("value") == value


async def test_values_at_the_same_time(client: Any) -> None:
    values = [random.Random(n).randbytes(n * 40_000) for n in range(16)]

    async def there_and_back(number: int) -> None:
        for _ in range(3):
            await client.set(f"value:{number}", values[number])
            assert await client.get(f"value:{number}") == values[number]

    async with asyncio.TaskGroup() as tasks:
        for number in range(16):
            tasks.create_task(there_and_back(number))


async def test_publish_and_subscribe(client: Any, by_tcp: Any) -> None:
    async with client.pubsub() as subscriber:
        await subscriber.subscribe("news")
        assert (await subscriber.get_message(timeout=PATIENCE))["type"] == "subscribe"
        for number in range(100):
            await by_tcp.publish("news", number)
        got = [await subscriber.get_message(timeout=PATIENCE) for _ in range(100)]
    assert [int(message["data"]) for message in got] == list(range(100))


async def test_a_blocked_command_is_woken(client: Any, by_tcp: Any) -> None:
    waiting = asyncio.create_task(client.blpop("queue", 0))
    while b"cmd=blpop" not in await by_tcp.execute_command("CLIENT", "LIST"):
        await anyio.lowlevel.checkpoint()
    await by_tcp.rpush("queue", "job")
    assert list(await waiting) == [b"queue", b"job"]


async def test_a_cancelled_command_harms_no_other(client: Any, by_tcp: Any) -> None:
    for _ in range(3):
        waiting = asyncio.create_task(client.blpop("never", 0))
        while b"cmd=blpop" not in await by_tcp.execute_command("CLIENT", "LIST"):
            await anyio.lowlevel.checkpoint()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await client.ping()
    await gone(by_tcp, b"cmd=blpop")


async def gone(by_tcp: Any, what: bytes) -> None:
    """Wait until the server has no such client any more."""
    with anyio.fail_after(PATIENCE):
        while what in await by_tcp.execute_command("CLIENT", "LIST"):
            await anyio.lowlevel.checkpoint()


async def test_fifty_connections(valkey: Valkey, by_tcp: Any) -> None:
    clients = [on_redis.from_url(url(valkey), socket_connect_timeout=PATIENCE) for _ in range(50)]

    async def work(number: int) -> None:
        for turn in range(20):
            await clients[number].set(f"{number}:{turn}", bytes([turn]) * 1000)
            assert await clients[number].get(f"{number}:{turn}") == bytes([turn]) * 1000

    async with asyncio.TaskGroup() as tasks:
        for number in range(50):
            tasks.create_task(work(number))
    assert int((await by_tcp.info("clients"))["connected_clients"]) > 50
    for client in clients:
        await client.aclose()
    with anyio.fail_after(PATIENCE):
        while int((await by_tcp.info("clients"))["connected_clients"]) > 5:
            await anyio.lowlevel.checkpoint()


async def test_the_server_ends_a_connection(client: Any, by_tcp: Any) -> None:
    """CLIENT KILL: the next command fails or makes a new connection, as on TCP."""
    number = await client.client_id()
    await by_tcp.execute_command("CLIENT", "KILL", "ID", number)
    with contextlib.suppress(redis.ConnectionError, Exception):
        await client.ping()
    assert await client.ping()
    assert await client.client_id() != number
