"""Streams to a real valkey-server: its receives, its end, a client that is killed, buffers of other sizes."""

from __future__ import annotations

import random
import signal
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import redis.asyncio
from demolib.valkey import start_valkey

import aiordma.valkey
from aiordma.integrations import redis as on_redis
from tests.loops import LOOPS
from tests.processes import PATIENCE, process
from tests.valkey.roles import command
from tests.world import DEVICE

if TYPE_CHECKING:
    from pathlib import Path

    from demolib.valkey import Valkey

pytestmark = pytest.mark.anyio

PING, PONG = b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n"


@pytest.fixture(params=list(LOOPS))
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return LOOPS[request.param]


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIORDMA_DEVICE", DEVICE)


async def test_a_server_that_sleeps_gets_thousands_of_writes(valkey: Valkey) -> None:
    """More than it has receives: they wait, in order, and none is refused."""
    async with aiordma.valkey.connect("127.0.0.1", valkey.rdma_port) as stream:
        await stream.send(command(b"DEBUG", b"SLEEP", b"0.3"))

        async def send() -> None:
            for _ in range(3000):
                await stream.send(PING)
                for _ in range(2):
                    await anyio.lowlevel.checkpoint()  # else they would go together

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                expected = b"+OK\r\n" + 3000 * PONG
                assert await stream.receive_exactly(len(expected)) == expected
        counts = stream.statistics()
        assert counts.writes > 2000
        assert counts.queries > 5
        assert counts.times_blocked > 0


async def test_a_client_that_does_not_read(valkey: Valkey) -> None:
    """Megabytes of answers wait at the server, not here; all of them come."""
    value = random.Random(1).randbytes(700_000)
    async with aiordma.valkey.connect("127.0.0.1", valkey.rdma_port, buffer_bytes=1 << 16) as stream:
        with anyio.fail_after(PATIENCE):
            await stream.send(command(b"SET", b"big", value))
            assert await stream.receive_exactly(5) == b"+OK\r\n"
            await stream.send(20 * command(b"GET", b"big"))
            await anyio.sleep(0.05)
            assert stream.statistics().bytes_received == 5
            for _ in range(20):
                assert await stream.receive_exactly(9) == b"$700000\r\n"
                assert await stream.receive_exactly(700_000) == value
                assert await stream.receive_exactly(2) == b"\r\n"


async def test_the_server_says_goodbye(valkey: Valkey) -> None:
    async with aiordma.valkey.connect("127.0.0.1", valkey.rdma_port) as stream:
        await stream.send(command(b"QUIT"))
        with anyio.fail_after(PATIENCE):
            assert await stream.receive_exactly(5) == b"+OK\r\n"
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()


async def test_a_client_is_killed(valkey: Valkey) -> None:
    """The server notices: its next keepalive finds no one."""
    async with aiordma.valkey.connect("127.0.0.1", valkey.rdma_port) as stream:
        with process("tests.valkey.roles:holder", port=valkey.rdma_port) as client:
            assert await client.heard() == "+OK\r\n"
            client.kill()
        with anyio.fail_after(PATIENCE):
            while True:
                await stream.send(command(b"CLIENT", b"LIST"))
                if b"doomed" not in await stream.receive(1 << 20):
                    break
                await anyio.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_the_server_dies(tmp_path: Path, number: signal.Signals) -> None:
    """In order, or killed. Then it comes back, and the client as well."""
    first = start_valkey(str(tmp_path))
    stream = await aiordma.valkey.connect("127.0.0.1", first.rdma_port)
    async with stream:
        await stream.send(PING)
        with anyio.fail_after(PATIENCE):
            assert await stream.receive() == PONG
            first.program.stop(number)
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await stream.receive()
            with pytest.raises(anyio.BrokenResourceError):
                await stream.send(PING)
            with pytest.raises(ConnectionRefusedError):
                await aiordma.valkey.connect("127.0.0.1", first.rdma_port)
    second = start_valkey(str(tmp_path), ports=first[1:])
    async with aiordma.valkey.connect("127.0.0.1", second.rdma_port) as stream:
        await stream.send(PING)
        with anyio.fail_after(PATIENCE):
            assert await stream.receive() == PONG
    second.program.stop()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_more_connections_than_a_peer_may_have_channels(tmp_path: Path, anyio_backend: Any) -> None:
    """valkey-server never destroys its completion channels, since it destroys a CQ before the QP."""
    running = start_valkey(str(tmp_path))
    for _ in range(600):
        async with aiordma.valkey.connect("127.0.0.1", running.rdma_port) as stream:
            await stream.send(PING)
            with anyio.fail_after(PATIENCE):
                assert await stream.receive() == PONG
    running.program.stop()


@pytest.mark.parametrize("rx_size", [1 << 16, 1 << 24])
async def test_other_buffers(tmp_path: Path, rx_size: int) -> None:
    running = start_valkey(str(tmp_path), "--rdma-rx-size", str(rx_size))
    value = random.Random(rx_size).randbytes(3_000_000)
    async with aiordma.valkey.connect("127.0.0.1", running.rdma_port, buffer_bytes=1 << 14) as stream:
        with anyio.fail_after(PATIENCE):
            await stream.send(command(b"ECHO", value))
            assert await stream.receive_exactly(10) == b"$3000000\r\n"
            assert await stream.receive_exactly(3_000_000) == value
        assert stream.statistics().peer_ring_bytes == rx_size
    running.program.stop()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_redis_py_comes_back(tmp_path: Path, anyio_backend: Any) -> None:
    first = start_valkey(str(tmp_path))
    async with on_redis.from_url(f"valkey+rdma://127.0.0.1:{first.rdma_port}") as client:
        assert await client.ping()
        first.program.stop(signal.SIGKILL)
        with pytest.raises(redis.ConnectionError):
            await client.ping()
        second = start_valkey(str(tmp_path), ports=first[1:])
        assert await client.ping()
    second.program.stop()
