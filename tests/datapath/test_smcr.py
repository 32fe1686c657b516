"""Streams over a link that speaks SMC-R without aiordma's window: both ends here, as a kernel's would be."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import anyio
import pytest

from aiordma.config import Config
from aiordma.errors import RemoteProtocolError
from aiordma.links import engine as links_engine
from aiordma.proto import llcown
from aiordma.proto.smcr_link import LinkEnded
from tests.health import until
from tests.kernel_peer import Pair, check, echo
from tests.vm.smc.peer import Fallback
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", [pytest.param("asyncio", id="asyncio")]),
]


@pytest.fixture
async def ends() -> AsyncIterator[Pair]:
    made = Pair(await links_engine.current(Config(device=DEVICE)))
    yield made
    await made.close()


async def test_streams_share_a_link_and_every_byte_arrives(ends: Pair) -> None:
    made = [await ends.connect() for _ in range(3)]
    assert (len(ends.client.links), len(ends.server.links)) == (1, 1)
    data = random.Random(1).randbytes(600_000)  # nine times the ring
    echoing = [asyncio.ensure_future(echo(server)) for _, (server, _) in made]
    await asyncio.gather(*(check(client, data[i:]) for i, ((client, _), _) in enumerate(made)))
    await asyncio.gather(*echoing)
    for (client, member), (server, other) in made:
        await asyncio.gather(client.aclose(), server.aclose())
        await asyncio.gather(member.done.wait(), other.done.wait())
    link = ends.client.links[0]
    assert link.ended is None
    assert link.group is not None
    assert link.group.tokens == set()
    assert link.pair.messages_sent == ends.server.links[0].pair.messages_received


async def test_cursors_go_without_the_check_word(ends: Pair) -> None:
    """Linux is to find zeros where aiordma has it."""
    (client, _), (server, other) = await ends.connect()
    seen = []
    link = ends.server.links[0]
    slots = link.slots
    await client.send(b"hello")
    assert await server.receive() == b"hello"
    for slot in range(64):
        message = bytes(slots.view()[slot * 8192 : slot * 8192 + 44])
        if message[0] == 0xFE:
            seen.append(message)
    assert seen
    assert {message[26:] for message in seen} == {bytes(18)}
    assert {int.from_bytes(message[4:8], "big") for message in seen} == {other.pipe.token}


async def test_a_deleted_link_ends_its_streams(ends: Pair) -> None:
    (client, _), _ = await ends.connect()
    link = ends.server.links[0]
    assert link.machine is not None
    link.machine.close()
    link.pump()
    with pytest.raises(anyio.BrokenResourceError):
        await client.receive()
    assert isinstance(ends.client.links[0].ended, LinkEnded)
    assert ends.client.groups.count == 0


async def test_a_second_contact_after_a_lost_link(ends: Pair) -> None:
    """The server does not know that the client has lost it: TCP once, and a new link then."""
    await ends.connect()
    ends.client.links[0].end(ConnectionResetError("a test"))
    await until(lambda: ends.client.groups.count == 0)
    if ends.server.links[0].ended is None:
        with pytest.raises(Fallback, match="0x030b0000"):
            await ends.connect()
    (client, _), (server, _) = await ends.connect()
    await server.send(b"again")
    assert await client.receive() == b"again"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            llcown.Ticket(number=1, service=1, token=1, rkey=1, ring_addr=0, ring_bytes=16384).encode(),
            "Ticket",
        ),
        (bytes(44), "type 0x00"),
        (b"\xc1" + bytes(43), "type 0xc1"),
        (b"\x07" + bytes(30), "31 bytes"),
    ],
    ids=["aiordma's own", "unknown", "channel", "short"],
)
async def test_what_no_kernel_sends_ends_the_link(ends: Pair, message: bytes, text: str) -> None:
    (_, _), (server, _) = await ends.connect()
    ends.client.links[0].pair.queue_llc(message)
    with pytest.raises(anyio.BrokenResourceError):
        await server.receive()
    ended = ends.server.links[0].ended
    assert ended is not None
    assert text in str(ended)
    assert isinstance(ended, RemoteProtocolError | LinkEnded)
