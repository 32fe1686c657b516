"""A server that breaks the protocol harms its own connection only, and the error says what it did."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import anyio
import pytest

from tests.processes import PATIENCE
from tests.world import needs_pyverbs

from .conftest import connected
from .model import KEEPALIVE, ModelServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = [pytest.mark.anyio, needs_pyverbs]


@pytest.fixture
async def other(server: ModelServer) -> AsyncIterator[ModelServer]:
    """Of the bystander."""
    made = await ModelServer.make()
    yield made
    made.close()


def memory(address: int, length: int) -> bytes:
    return struct.pack(">H14xQII", 3, address, length, 1)


ATTACKS: dict[str, tuple[Callable[[ModelServer], None], str]] = {
    "an unknown command": (lambda s: s.command(b"\0\7" + bytes(30)), "command 7 from the server"),
    "a client's command": (lambda s: s.command(b"\0\1" + bytes(30)), "command 1 from the server"),
    "half a command": (lambda s: s.command(KEEPALIVE[:16]), "a command of 16 bytes"),
    "an empty command": (lambda s: s.command(b""), "a command of 0 bytes"),
    "a command that is too long": (lambda s: s.command(KEEPALIVE + KEEPALIVE), "stopped QP|LOC_LEN_ERR"),
    "an answer to nothing": (lambda s: s.command(bytes(32)), "has not asked"),
    "a buffer while there is room": (lambda s: s.register(), "room for 4096 bytes"),
    "an empty buffer": (lambda s: s.command(memory(4096, 0)), "RegisterXferMemory with 0 bytes"),
    "a buffer of gigabytes": (lambda s: s.command(memory(4096, 0xFFFFFFFF)), "no buffer is like that"),
    "more than it has written": (lambda s: s.write(b"abc", says=5000), "written 5000 bytes.*room for 4096"),
    "nothing written": (lambda s: s.write(b"", says=0), "written 0 bytes"),
    "the most that can be said": (lambda s: s.write(b"abc", says=0xFFFFFFFF), "written 4294967295 bytes"),
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_attacks(server: ModelServer, other: ModelServer, name: str) -> None:
    attack, says = ATTACKS[name]
    bystander = await connected(other)
    victim = await connected(server)
    async with bystander, victim:
        with anyio.fail_after(PATIENCE):
            await bystander.send(b"half")
            attack(server)
            with pytest.raises(anyio.BrokenResourceError, match=says):
                await victim.receive()
            with pytest.raises(anyio.BrokenResourceError, match=says):
                await victim.send(b"more")
            assert victim.closed
            other.write(b"still here")
            assert await bystander.receive() == b"still here"
            assert await other.receive() == b"half"


async def test_data_from_before_the_fault_is_read(server: ModelServer) -> None:
    stream = await connected(server)
    async with stream:
        server.write(b"good")
        server.command(b"\xff" * 32)
        with anyio.fail_after(PATIENCE):
            while not stream.closed:
                await anyio.lowlevel.checkpoint()
            assert await stream.receive() == b"good"
            with pytest.raises(anyio.BrokenResourceError, match="command 65535"):
                await stream.receive()


async def test_memory_that_is_not_the_servers(server: ModelServer) -> None:
    """Its address for writing is wrong: the device refuses, at one end or the other."""
    stream = await connected(server)
    async with stream:
        server.written = 1 << 40
        server.write(b"abc")
        with anyio.fail_after(PATIENCE):
            with pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream)):
                await stream.receive()
