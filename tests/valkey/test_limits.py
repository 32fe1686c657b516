"""What a server can take of a client: memory, time, and the right to send; a bystander loses nothing."""

from __future__ import annotations

import random
import struct
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

import aiordma.valkey
from aiordma.errors import Code, NegotiationError
from aiordma.links.engine import current
from aiordma.proto import valkey
from aiordma.valkey.connection import Connection
from aiordma.verbs.memory.budget import MemoryLimitError
from tests.health import until
from tests.processes import PATIENCE
from tests.virtual import in_virtual_time
from tests.world import needs_pyverbs

from .conftest import connected
from .model import FEATURES, KEEPALIVE, ModelServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.anyio, needs_pyverbs]

MIB = 1 << 20


@pytest.fixture
async def other(server: ModelServer) -> AsyncIterator[ModelServer]:
    """Of the bystander."""
    made = await ModelServer.make()
    yield made
    made.close()


async def echo(stream: aiordma.valkey.ValkeyStream, server: ModelServer) -> None:
    """Bytes both ways, of which the server takes up to a buffer."""
    await stream.send(b"there")
    assert await server.receive() == b"there"
    server.written = 0
    await server.send(b"back", most=4)
    assert await stream.receive() == b"back"


def take(server: ModelServer) -> None:
    """As an honest server takes commands: what is asked is answered."""
    while (found := server.look()) is not None:
        if found[0] == "command" and found[1][:2] == b"\0\0":
            server.command(FEATURES)


# ---- the right to send


async def test_keepalives_do_not_use_up_the_receives(server: ModelServer) -> None:
    """A server that is silent is asked every few seconds, for as long as the connection lasts."""
    stream = await connected(server)
    async with stream:
        pipe: Any = stream._pipe
        with anyio.fail_after(PATIENCE):
            for _ in range(1500):
                pipe.keepalive()
                take(server)
                await anyio.lowlevel.checkpoint()
            await stream.send(b"still")
            assert await server.receive() == b"still"


async def test_reading_does_not_use_up_the_receives(server: ModelServer) -> None:
    """Each buffer that is read is registered again, which takes a receive of the server."""
    stream = await connected(server)
    async with stream:
        with anyio.fail_after(PATIENCE):
            for number in range(1100):
                block = number.to_bytes(4, "big") * 1024
                server.write(block)
                assert await stream.receive_exactly(4096) == block
                while not server.room:
                    take(server)
                    await anyio.lowlevel.checkpoint()
            await stream.send(b"thanks")
            assert await server.receive() == b"thanks"
        assert stream.statistics().queries


async def test_a_server_without_answers_is_still_probed(server: ModelServer) -> None:
    """It has taken every receive, and says nothing: its device answers for it."""
    stream = await connected(server)
    async with stream:
        pipe: Any = stream._pipe
        with anyio.fail_after(PATIENCE):
            for _ in range(1500):
                before = pipe.last_received
                pipe.keepalive()
                while pipe.last_received == before:
                    pipe.look()
                    await anyio.lowlevel.checkpoint()
                while server.look() is not None:
                    pass
        assert pipe.error is None
        with pytest.raises(anyio.WouldBlock):
            stream.send_nowait(b"no room")


# ---- memory


async def test_a_buffer_that_is_said_to_be_huge(server: ModelServer, other: ModelServer) -> None:
    """The client does not make room as large as what the server claims."""
    engine = await current()
    bystander = await connected(other)
    server.size = valkey.MAX_BUFFER_BYTES
    before = engine.statistics()["memory"]["registered_bytes"]
    async with bystander, await connected(server) as stream:
        await stream.send(b"x")
        assert engine.statistics()["memory"]["registered_bytes"] - before < 8 * MIB
        with anyio.fail_after(PATIENCE):
            await echo(bystander, other)


@pytest.mark.parametrize("size", [9 * MIB + 4097, 8 * MIB], ids=["odd", "even"])
async def test_a_buffer_larger_than_the_copies(anyio_backend: object, size: int) -> None:
    """Every byte arrives where the copies begin again, and where the buffer does."""
    rng = random.Random(size)
    data, got = rng.randbytes(25 * MIB), bytearray()
    server = await ModelServer.make(size=size)
    try:
        async with await connected(server) as stream:

            async def send() -> None:
                at = 0
                while at < len(data):
                    step = rng.choice((1, 1000, 4096, 100_000, 3 * MIB))
                    await stream.send(data[at : at + step])
                    at += step

            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(send)
                    while len(got) < len(data):
                        got += await server.receive()
        assert got == data
    finally:
        server.close()


async def test_no_memory_to_send_from(
    server: ModelServer, other: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said when the connection is made, not by a stream that cannot send."""
    engine = await current()

    def mirror(self: Connection, length: int) -> tuple[int, int]:
        raise MemoryLimitError("memory_limit_bytes is reached")

    async with await connected(other) as bystander:
        with monkeypatch.context() as patched, anyio.fail_after(PATIENCE):
            patched.setattr(Connection, "mirror", mirror)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.accept)
                with pytest.raises(NegotiationError, match="memory_limit_bytes") as caught:
                    await aiordma.valkey.connect("127.0.0.1", server.port, buffer_bytes=4096)
        assert caught.value.code == Code.OUT_OF_MEMORY
        assert len(engine.users) == 1
        with anyio.fail_after(PATIENCE):
            await echo(bystander, other)


async def test_no_memory_for_what_has_come(
    server: ModelServer, other: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That connection ends, once, with the reason."""
    calls = list[bytes]()

    def parse(data: bytes) -> valkey.Command:
        calls.append(data)
        raise MemoryError

    async with await connected(other) as bystander, await connected(server) as stream:
        server.write(b"before")
        with monkeypatch.context() as patched, anyio.fail_after(PATIENCE):
            patched.setattr(valkey, "parse", parse)
            server.command(KEEPALIVE)
            server.command(KEEPALIVE)
            await until(lambda: stream.closed)
            assert await stream.receive() == b"before"
            with pytest.raises(anyio.BrokenResourceError, match="no memory for what comes from the server"):
                await stream.receive()
        assert calls == [KEEPALIVE]
        with anyio.fail_after(PATIENCE):
            await echo(bystander, other)


async def test_copies_are_kept_where_the_positions_begin_again(anyio_backend: object) -> None:
    """The 2^32nd request reads from the copies: they are not written over before it is done."""
    server = await ModelServer.make(8 * MIB)
    try:
        async with await connected(server) as stream:
            pipe: Any = stream._pipe
            pipe.look()
            seen = pipe.statistics()
            posted = seen.writes + seen.registrations_sent + seen.queries
            pipe.count_on((1 << 32) - posted - 16)
            assert pipe.try_send(bytes(5 * MIB)) == 4 * MIB  # 16 WRITEs: the copies have room for no more
    finally:
        server.close()


# ---- time


async def test_endless_keepalives(server: ModelServer, other: ModelServer) -> None:
    """They are taken in turns: a bystander's bytes go and come, and so do the stream's own."""
    async with await connected(other) as bystander, await connected(server) as stream:
        with anyio.fail_after(PATIENCE):
            for number in range(30):
                for _ in range(64):
                    server.command(KEEPALIVE)
                await bystander.send(b"%d" % number)
                assert await other.receive() == b"%d" % number
                take(server)
            server.write(b"all the same")
            assert await stream.receive() == b"all the same"


@pytest.mark.parametrize("key", ["forged", "none", "elsewhere"])
async def test_memory_that_the_client_may_not_write(
    server: ModelServer, other: ModelServer, key: str
) -> None:
    """Its address or key is wrong: the stream ends by an error."""

    def register(length: int | None = None) -> None:
        address, rkey = server._rx, server._memory.rkey
        if key == "elsewhere":
            address = 1 << 20
        else:
            rkey = 0 if key == "none" else rkey ^ 0xFF00
        server.command(struct.pack(">H14xQII", 3, address, 4096, rkey))

    server.register = register  # type: ignore[method-assign]
    async with await connected(other) as bystander, await connected(server) as stream:
        with anyio.fail_after(PATIENCE):
            await stream.send(b"x" * 1000)
            with pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream)):
                await stream.receive()
            with pytest.raises(anyio.BrokenResourceError):
                await stream.send(b"more")
            await echo(bystander, other)


async def test_buffers_keep_their_size(server: ModelServer, other: ModelServer) -> None:
    async with await connected(other) as bystander, await connected(server) as stream:
        with anyio.fail_after(PATIENCE):
            await stream.send(b"x" * 4096)
            assert await server.next() == ("data", b"x" * 4096)
            server.register(8192)
            with pytest.raises(anyio.BrokenResourceError, match="buffers keep their size"):
                await stream.receive()
            await echo(bystander, other)


@in_virtual_time
@pytest.mark.parametrize("keepalive", ["10000", "0"])
async def test_a_server_that_never_takes_the_last_bytes(
    anyio_backend: object, monkeypatch: pytest.MonkeyPatch, keepalive: str
) -> None:
    """A closed stream waits for its server, and gives up: memory and queue pair are not held for ever."""
    monkeypatch.setenv("AIORDMA_KEEPALIVE_MS", keepalive)
    monkeypatch.setenv("AIORDMA_STOPPED_PEER_MS", "30000")
    engine = await current()
    server = await ModelServer.make(receives=4)
    try:
        async with await connected(server) as stream:
            for _ in range(20):
                await stream.send(b"x" * 100)
                stream._pipe.look()
        assert engine.users  # it waits
        await anyio.sleep(25)
        assert engine.users
        await anyio.sleep(50)
        assert not engine.users
    finally:
        server.close()
