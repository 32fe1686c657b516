"""A client or a server that blocks its loop: what it wrote before does not wait until the loop goes on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import anyio
import pytest

import aiordma
from aiordma.channels import channel as channels
from aiordma.datagrams.connection import connect_datagram, listen_datagram
from tests.loops import LOOPS
from tests.pipes.channel_ends import End
from tests.processes import PATIENCE, process
from tests.roles import LOCAL
from tests.system.adversity.test_ends import _kept, _stream, _streams, _transport

if TYPE_CHECKING:
    from aiordma.datagrams.connection import DatagramConnection
    from aiordma.pipes.contracts import Channel
    from tests.program import Control

pytestmark = pytest.mark.anyio

HERE = "tests.system.adversity.test_blocked"
PIECES = [b"status", b"head" * 50, b"body" * 1000]
WHOLE = b"".join(PIECES)
#: The second one is long, and goes as two writes.
MESSAGES = [b"head", b"body" * 1000]


def block(control: Control) -> None:
    """Until the test says that it has everything: nothing of the loop runs."""
    os.set_blocking(control._reads, True)
    os.read(control._reads, 1)


async def _datagrams(control: Control, port: int | None) -> DatagramConnection:
    if port is not None:
        return await connect_datagram(LOCAL, port, mode="rdma")
    listener = await listen_datagram(LOCAL)
    _kept.append(listener)
    control.say(listener.port)
    return await listener.accept()


async def blocking(control: Control, surface: str, port: int | None) -> None:
    """Writes three pieces in one turn of the loop, and blocks it. None: to its first client."""
    if surface == "streams":
        writer = await _streams(control, port, aiordma)
        for piece in PIECES:
            writer.write(piece)
        writer.write_eof()
        block(control)
        writer.close()
    elif surface == "transport":
        transport = await _transport(control, port)
        for piece in PIECES:
            transport.write(piece)
        transport.write_eof()
        block(control)
        transport.close()
    elif surface == "datagrams":
        async with await _datagrams(control, port) as connection:
            for message in MESSAGES:
                await connection.send(message)
            block(control)
    else:
        async with await _stream(control, port) as stream:
            for piece in PIECES:
                await stream.send(piece)
            block(control)


async def closing(control: Control, port: int | None) -> None:
    """Sends messages on a channel, closes it in the same turn of the loop, and blocks. None: as a server."""
    if port is None:
        listener = await channels.listen(LOCAL)
        _kept.append(listener)
        control.say(listener.port)
        connected = await listener.accept()
    else:
        connected = await channels.connect(LOCAL, port, mode="rdma")
    connected.send_soon(MESSAGES)
    connected.channel.close()
    block(control)


BLOCKING = pytest.mark.parametrize(
    ("surface", "loop"),
    [("streams", "asyncio"), ("transport", "asyncio"), ("transport", "asyncio+uvloop")]
    + [("stream", loop) for loop in LOOPS],
)


async def expect_all(stream: aiordma.RdmaStream, surface: str) -> None:
    assert stream.path == "rdma"
    assert await stream.receive_exactly(len(WHOLE)) == WHOLE
    if surface in ("streams", "transport"):
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()


@BLOCKING
async def test_what_was_written_arrives(surface: str, loop: str) -> None:
    async with await aiordma.listen(LOCAL) as listener:
        with process(f"{HERE}:blocking", loop, surface=surface, port=listener.port) as sender:
            with anyio.fail_after(PATIENCE):
                async with await listener.accept() as stream:
                    await expect_all(stream, surface)
                    sender.say("go on")


@BLOCKING
async def test_what_a_server_wrote_arrives(surface: str, loop: str) -> None:
    with process(f"{HERE}:blocking", loop, surface=surface, port=None) as sender:
        with anyio.fail_after(PATIENCE):
            async with await aiordma.connect(LOCAL, await sender.heard(), mode="rdma") as stream:
                await expect_all(stream, surface)
                sender.say("go on")


@pytest.mark.parametrize("loop", LOOPS)
async def test_datagrams_arrive(loop: str) -> None:
    async with await listen_datagram(LOCAL) as listener:
        with process(f"{HERE}:blocking", loop, surface="datagrams", port=listener.port) as sender:
            with anyio.fail_after(PATIENCE):
                async with await listener.accept() as connection:
                    assert [await connection.receive() for _ in MESSAGES] == MESSAGES
                    sender.say("go on")


@pytest.mark.parametrize("loop", LOOPS)
async def test_datagrams_of_a_server_arrive(loop: str) -> None:
    with process(f"{HERE}:blocking", loop, surface="datagrams", port=None) as sender:
        with anyio.fail_after(PATIENCE):
            async with await connect_datagram(LOCAL, await sender.heard(), mode="rdma") as connection:
                assert [await connection.receive() for _ in MESSAGES] == MESSAGES
                sender.say("go on")


async def expect_messages(channel: Channel) -> None:
    assert channel.path == "rdma"
    reader = End(channel, keeps_views=False)
    assert await reader.ended() is None
    assert reader.messages == MESSAGES


@pytest.mark.parametrize("loop", LOOPS)
async def test_the_end_of_a_channel_arrives(loop: str) -> None:
    async with await channels.listen(LOCAL) as listener:
        with process(f"{HERE}:closing", loop, port=listener.port) as sender:
            with anyio.fail_after(PATIENCE):
                async with await listener.accept() as connected:
                    await expect_messages(connected.channel)
                    sender.say("go on")


@pytest.mark.parametrize("loop", LOOPS)
async def test_the_end_of_a_servers_channel_arrives(loop: str) -> None:
    with process(f"{HERE}:closing", loop, port=None) as sender:
        with anyio.fail_after(PATIENCE):
            async with await channels.connect(LOCAL, await sender.heard(), mode="rdma") as connected:
                await expect_messages(connected.channel)
                sender.say("go on")
