"""Adapters of libraries that run on asyncio: aiohttp, grpclib, redis-py."""

from __future__ import annotations

import asyncio
import shutil
from typing import Any

import anyio
import pytest

import aiordma
from tests.roles import LOCAL, free_port, port_of

pytestmark = pytest.mark.anyio


@pytest.fixture(
    params=[("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"]
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


# ---- aiohttp


async def test_aiohttp(pages: str, plain_pages: str) -> None:
    aiohttp: Any = pytest.importorskip("aiohttp", reason="the extra aiordma[aiohttp] is not installed")
    from aiordma.integrations.aiohttp import RdmaConnector

    async with aiohttp.ClientSession(connector=RdmaConnector()) as session:
        for where in (pages, plain_pages):
            async with session.get(where + "/a") as response:
                assert await response.text() == "/a"
        transports = [pooled[0][0].transport for pooled in session.connector._conns.values()]
        paths = [transport.get_extra_info("aiordma.path") for transport in transports]
    assert sorted(paths) == ["rdma", "tcp"]


async def test_aiohttp_errors() -> None:
    aiohttp: Any = pytest.importorskip("aiohttp", reason="the extra aiordma[aiohttp] is not installed")
    from aiordma.integrations.aiohttp import RdmaConnector

    async with aiohttp.ClientSession(connector=RdmaConnector()) as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(f"http://{LOCAL}:1/")


# ---- grpclib


async def test_grpclib() -> None:
    pytest.importorskip("grpclib", reason="the extra aiordma[grpclib] is not installed")
    from grpclib.client import UnaryUnaryMethod
    from grpclib.const import Cardinality, Handler
    from grpclib.encoding.base import CodecBase

    from aiordma.integrations.grpclib import RdmaChannel, RdmaServer

    class Bytes(CodecBase):  # type: ignore[misc]
        __content_subtype__ = "bytes"

        def encode(self, message: Any, message_type: Any) -> bytes:
            return bytes(message)

        def decode(self, data: bytes, message_type: Any) -> Any:
            return message_type(data)

    class Echo:
        async def say(self, stream: Any) -> None:
            await stream.send_message(b"you said " + await stream.recv_message())

        def __mapping__(self) -> dict[str, Any]:
            return {"/Echo/Say": Handler(self.say, Cardinality.UNARY_UNARY, bytes, bytes)}

    server = RdmaServer([Echo()], codec=Bytes())
    port = free_port()
    await server.start(LOCAL, port)
    channel = RdmaChannel(LOCAL, port, codec=Bytes())
    say = UnaryUnaryMethod(channel, "/Echo/Say", bytes, bytes)
    assert await say(b"hello") == b"you said hello"
    connection = (await channel.__connect__()).connection
    assert connection._transport.get_extra_info("aiordma.path") == "rdma"
    channel.close()
    server.close()
    await server.wait_closed()


# ---- redis-py


@pytest.fixture
def redis_may_read(blockbuster: Any) -> None:
    """redis-py reads its own version from a file when it makes a connection."""
    for function in blockbuster.functions.values():
        function.can_block_in("redis/utils.py", "get_lib_version")


async def test_redis_by_rdma(redis_may_read: None) -> None:
    pytest.importorskip("redis", reason="the extra aiordma[redis] is not installed")
    from aiordma.integrations.redis import from_url

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """What every command gets: an error for HELLO and CLIENT, else PONG."""
        while line := await reader.readline():
            words = [await read_bulk(reader) for _ in range(int(line[1:]))]
            writer.write(b"-ERR unknown\r\n" if words[0] != b"PING" else b"+PONG\r\n")
        writer.close()

    async def read_bulk(reader: asyncio.StreamReader) -> bytes:
        size = int((await reader.readline())[1:])
        return (await reader.readexactly(size + 2))[:-2]

    server = await aiordma.start_server(serve, LOCAL, 0)
    port = port_of(server)
    client = from_url(f"rdma://{LOCAL}:{port}", protocol=2)
    assert await client.ping()
    (connection,) = client.connection_pool._available_connections
    assert connection._writer.get_extra_info("aiordma.path") == "rdma"
    await client.aclose()
    server.close()
    await server.wait_closed()


async def test_redis_with_a_plain_server(tmp_path: Any, redis_may_read: None, silent_servers: None) -> None:
    pytest.importorskip("redis", reason="the extra aiordma[redis] is not installed")
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    from aiordma.integrations.redis import from_url

    port = free_port()
    process = await asyncio.create_subprocess_exec(
        "redis-server", "--port", str(port), "--bind", LOCAL, "--save", "", cwd=tmp_path,
        stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await until_listening(port)
        client = from_url(f"rdma://{LOCAL}:{port}/3")
        assert await client.set("key", "value")
        assert await client.get("key") == b"value"
        (connection,) = client.connection_pool._available_connections
        assert connection._writer.get_extra_info("aiordma.path") == "tcp"
        await client.aclose()
    finally:
        process.terminate()
        await process.wait()


async def until_listening(port: int) -> None:
    with anyio.fail_after(10):
        while True:
            try:
                stream = await anyio.connect_tcp(LOCAL, port)
            except OSError:
                await anyio.sleep(0.01)
                continue
            await stream.aclose()
            return


def test_urls_that_are_none() -> None:
    pytest.importorskip("redis", reason="the extra aiordma[redis] is not installed")
    from aiordma.integrations.redis import from_url

    with pytest.raises(ValueError, match="must begin with rdma://"):
        from_url("redis://localhost:6379")


def test_hypercorn_on_trio() -> None:
    hypercorn: Any = pytest.importorskip("hypercorn", reason="the extra aiordma[hypercorn] is not installed")
    from aiordma.integrations.hypercorn import run

    config = hypercorn.Config()
    config.worker_class = "trio"
    with pytest.raises(ValueError, match="aiordma run hypercorn"):
        run(None, config)


async def test_aiohttp_tells_why_there_is_no_rdma(pages: str) -> None:
    aiohttp: Any = pytest.importorskip("aiohttp", reason="the extra aiordma[aiohttp] is not installed")
    from aiordma.integrations.aiohttp import RdmaConnector

    async with aiohttp.ClientSession(connector=RdmaConnector(mode="rdma")) as session:
        why = "ssl= is TLS over TCP; mode is 'rdma'"
        with pytest.raises(aiohttp.ClientConnectorError, match=why) as told:
            await session.get(pages.replace("http:", "https:"))
    assert "None" not in str(told.value)
