"""Peers that lie, flood, say nothing or stop reading: they harm their own connection, and nobody else."""

from __future__ import annotations

import gc
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiordma import rpc
from aiordma.errors import RemoteProtocolError
from aiordma.proto import rpc as wire
from aiordma.rpc.connection import Connection
from aiordma.testing.channel import MemoryChannel, memory_channels
from aiordma.testing.rpc import rpc_pair
from tests.health import settle

from .services import Seen, service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

HELLO = wire.hello_message(wire.Hello(8, 8, 1000, 1000))


class Peer:
    """One end of a channel, without any manners."""

    def __init__(self, channel: MemoryChannel) -> None:
        self.channel = channel
        self.messages: list[bytes] = []
        self.ended = False
        channel.on_message = lambda message: self.messages.append(bytes(message))
        channel.on_closed = self._on_closed

    def _on_closed(self, error: BaseException | None) -> None:
        self.ended = True

    async def say(self, *messages: bytes) -> None:
        for message in messages:
            while not self.ended and not self.channel.try_send(message[:512], message[512:]):
                await checkpoint()
            await settle(3)

    async def until_ended(self) -> None:
        with anyio.fail_after(10):
            while not self.ended:
                await checkpoint()

    def replies(self) -> list[bytes]:
        return [m for m in self.messages if m[0] == wire.REPLY]


@asynccontextmanager
async def server_and_peer(**options: Any) -> AsyncIterator[tuple[rpc.Server, Peer, Seen]]:
    made, seen = service()
    server = rpc.Server(made, calls=8, window=1000, **options)
    try:
        ours, theirs = memory_channels()
        server.attach(ours, "hostile")
        yield server, Peer(theirs), seen
    finally:
        await server.aclose(0.0)


BAD_FOR_SERVERS = {
    "garbage": [b"\xff" * 40],
    "empty": [b""],
    "no hello": [wire.call_head(1, 0, 0, 1, b"t.echo")],
    "another protocol": [b"GET / HTTP/1.1\r\n\r\n"],
    "too many calls": [HELLO, *(wire.call_head(i, 0, 1, 1, b"t.wait") + b"\x90" for i in range(1, 10))],
    "a reply": [HELLO, wire.reply_head(1, 0)],
    "items without credit": [
        HELLO,
        wire.call_head(1, wire.CLIENT_STREAM, 1, 1, b"t.hold") + b"\x90",
        *([wire.item_head(1, 0) + bytes(900)] * 3),
    ],
    "cancelled twice": [
        HELLO,
        wire.call_head(1, 0, 1, 1, b"t.stubborn") + b"\x90",
        wire.cancel_message(1, 1),
        wire.cancel_message(1, 1),
    ],
}


@pytest.mark.parametrize("name", list(BAD_FOR_SERVERS))
async def test_clients_that_break_the_protocol(name: str) -> None:
    made, seen = service()
    async with rpc_pair(made, calls=8, window=1000) as pair:
        ours, theirs = memory_channels()
        connection = pair.server.attach(ours, "hostile")
        peer = Peer(theirs)
        await peer.say(*BAD_FOR_SERVERS[name])
        await peer.until_ended()
        assert isinstance(connection.ended, RemoteProtocolError)
        seen.go.set()
        while seen.running:
            await checkpoint()
        await settle()
        assert pair.server.statistics() == (1, 0, 2)
        assert await pair.client.call("t.echo", b"as ever") == b"as ever"


@pytest.mark.parametrize(
    "messages",
    [
        [b"\xff" * 40],
        [wire.reply_head(1, 0)],
        [wire.hello_message(wire.Hello(0, 8, 1000, 1000))],
        [HELLO[:13] + b"\x63" + HELLO[14:]],
    ],
    ids=["garbage", "no hello", "no calls", "version"],
)
async def test_servers_that_are_none(messages: list[bytes]) -> None:
    ours, theirs = memory_channels()
    peer = Peer(theirs)

    async def say() -> None:
        await peer.say(*messages)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(say)
        with pytest.raises(rpc.RpcError) as caught:
            await Connection.open(ours, "hostile")
    assert caught.value.code is rpc.Code.UNAVAILABLE
    assert caught.value.not_started
    assert isinstance(caught.value.__cause__, RemoteProtocolError)


async def test_a_server_that_says_nothing() -> None:
    ours, theirs = memory_channels()
    peer = Peer(theirs)
    with pytest.raises(rpc.RpcError, match="no HELLO within"):
        await Connection.open(ours, "silent", timeout=0.01)
    await peer.until_ended()


@pytest.mark.parametrize("name", ["twice", "another", "items", "garbage", "metadata"])
async def test_servers_that_break_the_protocol_in_a_call(name: str) -> None:
    ours, theirs = memory_channels()
    peer = Peer(theirs)
    errors: list[rpc.RpcError] = []
    bad = {
        "twice": [wire.reply_head(1, 0), wire.reply_head(1, 0)],
        "another": [wire.reply_head(7, 0)],
        "items": [wire.item_head(1, 0)],
        "garbage": [b"\x00" * 20],
        "metadata": [wire.reply_head(1, 0, bytes(20000))],
    }[name]
    await peer.say(HELLO)
    connection = await Connection.open(ours, "hostile")

    async def call() -> None:
        try:
            await connection.call_raw("t.echo", 0, b"")
        except rpc.RpcError as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await settle()
        await peer.say(*bad)
    await settle()
    assert isinstance(connection.ended, RemoteProtocolError)
    assert len(errors) == (name != "twice")
    await peer.until_ended()


async def test_undecodable_metadata_fails_its_call_only() -> None:
    async with server_and_peer() as (_, peer, _):
        await peer.say(HELLO, wire.call_head(1, 0, 1, 1, b"t.context", metadata=b"\xff\xff") + b"\x91\x01")
        await settle()
        (reply,) = peer.replies()
        assert reply[3] == rpc.Code.INVALID_ARGUMENT
        await peer.say(wire.call_head(2, 0, 0, 2, b"t.echo") + b"still there")
        await settle()
        assert peer.replies()[1].endswith(b"still there")


async def test_undecodable_metadata_of_a_server_fails_its_call_only() -> None:
    ours, theirs = memory_channels()
    peer = Peer(theirs)
    await peer.say(HELLO)
    connection = await Connection.open(ours, "hostile")
    async with anyio.create_task_group() as tasks:

        async def answer() -> None:
            while len(peer.messages) < 2:
                await checkpoint()
            await peer.say(wire.error_message(1, 5, "not found", trailing=b"\xff"))

        tasks.start_soon(answer)
        with pytest.raises(rpc.RpcError, match="metadata") as caught:
            await connection.call_raw("t.echo", 0, b"")
        assert caught.value.code is rpc.Code.INTERNAL
    assert connection.usable
    connection.close()


async def test_pings_of_a_peer_that_does_not_read_are_merged() -> None:
    async with server_and_peer() as (server, peer, _):
        await peer.say(HELLO)
        (connection,) = server._connections
        connection._channel_try_send = lambda head, body=b"": False
        for i in range(500):
            await peer.say(wire.ping_message(i))
        assert len(connection._queue) == 1
        assert not peer.ended


async def test_replies_to_a_peer_that_does_not_read_are_bounded_by_its_calls() -> None:
    async with server_and_peer() as (server, peer, _):
        await peer.say(HELLO)
        (connection,) = server._connections
        connection._channel_try_send = lambda head, body=b"": False
        # It must not make more calls than it was granted until it has been answered. It cannot tell, of
        # course, that the answers are still here: what counts is what it knows.
        for i in range(1, 200):
            await peer.say(wire.call_head(i, 0, 0, 1, b"t.echo") + bytes(1000))
            if peer.ended:
                break
        await peer.until_ended()
        assert i <= 4 * 8 + 10
        assert not connection._queue


async def test_random_messages_of_valid_form() -> None:
    """Whatever comes: the server answers or ends the connection, and raises nothing else."""
    rng = random.Random(5)
    for _ in range(60):
        async with server_and_peer() as (server, peer, seen):
            seen.go.set()
            await peer.say(HELLO)
            for i in range(1, 30):
                kind = rng.randrange(4)
                call = rng.randrange(1, i + 2)
                method = rng.choice([b"t.echo", b"t.double", b"t.total", b"t.count", b"t.hold", b"t.no"])
                message = rng.choice(
                    [
                        wire.call_head(i, kind, rng.randrange(4), 0, method, window=500)
                        + rng.choice([b"", b"\x90", b"\x91\x05", b"\x92\x05\x06", b"\xc1"]),
                        wire.item_head(call, rng.randrange(3), rng.random() < 0.3) + rng.randbytes(3),
                        wire.end_message(call),
                        wire.cancel_message(call, rng.randrange(256)),
                        wire.credit_message(call, rng.randrange(1000)),
                        wire.ping_message(i),
                    ]
                )
                await peer.say(message)
                if peer.ended:
                    break
            await settle()
            for connection in server._connections:
                assert connection.ended is None
                assert all(not call.closed for call in connection.machine.calls.values())


async def test_nothing_is_left_of_calls_streams_and_connections() -> None:
    made, _ = service()

    def count() -> dict[str, int]:
        gc.collect()
        names = (
            "Call",
            "Reply",
            "ClientStream",
            "Inbox",
            "Sending",
            "Handling",
            "Context",
            "ServerConnection",
        )
        found = dict.fromkeys(names, 0)
        for o in gc.get_objects():
            if str(type(o).__module__).startswith("aiordma") and type(o).__name__ in found:
                found[type(o).__name__] += 1
        return found

    before = count()
    for _ in range(3):
        async with rpc_pair(made, client_window=500) as pair:
            for i in range(50):
                assert await pair.client.call("t.echo_late", bytes([i])) == bytes([i])
                with pytest.raises(rpc.RpcError):
                    await pair.client.call("t.fail_async", "rpc", timeout=30.0)
                async with pair.client.stream("t.count_async", 20) as items:
                    for _ in range(i % 20):
                        await items.receive()
            while pair.client.connection.calls:
                await checkpoint()
            assert len(pair.client.connection._deadlines) <= 128
        await settle()
    del pair, items
    await settle()
    assert count() == before
