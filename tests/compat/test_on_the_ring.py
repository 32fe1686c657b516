"""The asyncio surface on real rings: the software device, RDMA WRITE and all."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import os
import signal
import sys
import time
from typing import Any

import anyio
import pytest

import aiordma
from aiordma.config import Config
from tests.health import settle
from tests.world import DEVICE

from .recorder import Recorder

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[0, None, 50], ids=["events", "adaptive", "spin"])
def config(request: pytest.FixtureRequest) -> Config:
    return Config(device=DEVICE, mode="rdma", ring_bytes=32768, busy_poll_us=request.param)


def address(server: Any) -> tuple[str, int]:
    host, port = server.sockets[0].getsockname()
    return host, port


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def test_round_trips_of_every_size(config: Config) -> None:
    async with await aiordma.start_server(echo, "127.0.0.1", 0, config=config) as server:
        reader, writer = await aiordma.open_connection(*address(server), config=config)
        assert writer.get_extra_info("aiordma.path") == "rdma"
        with anyio.fail_after(30):
            for size in [1, 64, 4096, 32767, 32768, 32769, 100_000, 1 << 20, *range(1, 5000, 97)]:
                data = os.urandom(size)
                writer.write(data)
                await writer.drain()
                assert await reader.readexactly(size) == data
        stream = writer.get_extra_info("aiordma.stream")
        assert stream.statistics().bytes_sent == stream.statistics().bytes_received > 1 << 20
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_many_connections_at_the_same_time(config: Config) -> None:
    async def client(number: int) -> None:
        reader, writer = await aiordma.open_connection(*address(server), config=config)
        for i in range(20):
            line = f"{number} {i}\n".encode() * (i + 1)
            writer.write(line)
            for _ in range(i + 1):
                assert await reader.readline() == f"{number} {i}\n".encode()
        writer.close()
        await writer.wait_closed()

    async with await aiordma.start_server(echo, "127.0.0.1", 0, config=config) as server:
        with anyio.fail_after(30):
            await asyncio.gather(*map(client, range(50)))


async def test_bulk_both_ways_at_the_same_time(config: Config) -> None:
    size = 3_000_000
    data = os.urandom(size)
    digests: list[str] = []

    async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def send() -> None:
            for start in range(0, size, 70_001):
                writer.write(data[start : start + 70_001])
                await writer.drain()
            writer.write_eof()

        async def receive() -> None:
            digest = hashlib.sha256()
            while part := await reader.read(50_000):
                digest.update(part)
            digests.append(digest.hexdigest())

        await asyncio.gather(send(), receive())
        writer.close()
        await writer.wait_closed()

    async with await aiordma.start_server(exchange, "127.0.0.1", 0, config=config) as server:
        with anyio.fail_after(30):
            await exchange(*await aiordma.open_connection(*address(server), config=config))
            while len(digests) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
    assert digests == [hashlib.sha256(data).hexdigest()] * 2


async def test_protocols(config: Config) -> None:
    class Echo(Recorder):
        def data_received(self, data: bytes) -> None:
            self.transport.write(data)

    async with await aiordma.create_server(Echo, "127.0.0.1", 0, config=config) as server:
        transport, protocol = await aiordma.create_connection(Recorder, *address(server), config=config)
        assert isinstance(protocol, Recorder)
        data = os.urandom(500_000)
        transport.write(data)
        transport.write_eof()
        with anyio.fail_after(30):
            assert await protocol.lost is None
        assert protocol.data == data
        assert protocol.events[0] == "made"
        assert protocol.events[-2:] == ["eof", "lost"]


async def test_abort_with_unsent_data_resets_the_peer(config: Config) -> None:
    seen: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await asyncio.sleep(0)
            seen.set_result(await reader.readexactly(1_000_000))
        except Exception as exc:
            seen.set_result(exc)
        writer.close()

    async with await aiordma.start_server(handler, "127.0.0.1", 0, config=config) as server:
        _, writer = await aiordma.open_connection(*address(server), config=config)
        writer.write(b"x" * 500_000)
        writer.transport.abort()
        with anyio.fail_after(30):
            assert isinstance(await seen, ConnectionError)


async def test_writing_to_a_peer_that_has_closed(config: Config) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye")
        writer.close()

    async with await aiordma.start_server(handler, "127.0.0.1", 0, config=config) as server:
        reader, writer = await aiordma.open_connection(*address(server), config=config)

        async def keep_writing() -> None:
            for _ in range(100):
                writer.write(b"nobody is there")
                await writer.drain()
                await asyncio.sleep(0)

        with anyio.fail_after(30):
            assert await reader.read() == b"bye"
            with pytest.raises(ConnectionError):
                await keep_writing()
            with pytest.raises(ConnectionError):
                await writer.wait_closed()


_CHILD = """
import asyncio, os, sys
import aiordma
from aiordma.config import Config
from tests.world import DEVICE

async def main():
    config = Config(device=DEVICE, mode="rdma")
    reader, writer = await aiordma.open_connection("127.0.0.1", int(sys.argv[1]), config=config)
    writer.write(b"hello")
    while True:
        writer.write(await reader.read(1000))
        await writer.drain()

asyncio.run(main())
"""


async def test_a_killed_peer_is_a_lost_connection(config: Config) -> None:
    process: Any = None
    result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            assert await reader.readexactly(5) == b"hello"
            os.kill(process.pid, signal.SIGKILL)
            while True:
                writer.write(b"x" * 1000)
                await writer.drain()
                if not await reader.read(1000):
                    break
            result.set_result("eof")
        except Exception as exc:
            result.set_result(exc)
        writer.close()

    async with await aiordma.start_server(handler, "127.0.0.1", 0, config=config) as server:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", _CHILD, str(address(server)[1]))
        with anyio.fail_after(30):
            assert isinstance(await result, ConnectionError)
            await process.wait()


async def test_nothing_is_left(config: Config) -> None:
    async with await aiordma.start_server(echo, "127.0.0.1", 0, config=config) as server:
        for how in ("close", "abort", "eof"):
            reader, writer = await aiordma.open_connection(*address(server), config=config)
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            if how == "eof":
                writer.write_eof()
                assert await reader.read() == b""
            getattr(writer.transport, "abort" if how == "abort" else "close")()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        await settle(20)
        del reader, writer
        gc.collect()
        with anyio.fail_after(30):
            while any("echo" in repr(task) for task in asyncio.all_tasks()):  # noqa: ASYNC110
                await asyncio.sleep(0)


async def test_what_is_written_with_work_in_between_is_announced_meanwhile(config: Config) -> None:
    """A server that answers many connections in one turn of its loop lets none of them wait for its end."""
    async with await aiordma.create_server(Recorder, "127.0.0.1", 0, config=config) as server:
        made = [
            (await aiordma.create_connection(Recorder, *address(server), config=config))[0] for _ in range(4)
        ]
        await settle()
        streams = [transport.get_extra_info("aiordma.stream") for transport in made]
        before = [stream.statistics().cdcs_sent for stream in streams]
        for transport in made:
            transport.write(b"answer")
            until = time.perf_counter() + 0.001
            while time.perf_counter() < until:
                pass
        sent = [stream.statistics().cdcs_sent - was for stream, was in zip(streams, before, strict=True)]
        assert sent[:3] == [1, 1, 1], "the last of them may go at the end of the turn"
        for transport in made:
            transport.abort()
        await settle()
