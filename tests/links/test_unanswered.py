"""Streams that this end has closed, and the peer never ends: how long their rings are kept."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio
import pytest

from aiordma import faults
from aiordma.links import engine as engines
from aiordma.proto.failover import MAGIC, MESSAGE_BYTES
from tests.health import nothing_left, settle
from tests.links.failover.test_first_contact import both_ways
from tests.streams.pairs import negotiated_pair
from tests.tuned import tuned
from tests.virtual import in_virtual_time
from tests.world import DEVICE

from .pairs import member_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiordma import RdmaStream
    from aiordma.links.member import Member

pytestmark = pytest.mark.anyio

LIMIT_S = 10
CONFIG = tuned(device=DEVICE, ring_bytes=16384, link_timeout_ms=LIMIT_S * 1000)
#: Far more than any limit.
LONG_S = 100


@contextlib.asynccontextmanager
async def unanswered() -> AsyncIterator[tuple[Member, Member, RdmaStream, RdmaStream]]:
    """A stream that the server has closed, and whose client says nothing more on the link: what the server
    and the client have of it; and both ends of another stream on that link."""
    await engines.current(CONFIG)
    async with nothing_left():
        one, other = await negotiated_pair(config=CONFIG, mode="rdma")
        client, server = await negotiated_pair(config=CONFIG, mode="rdma")
        async with one, other, client:
            ours, theirs = member_of(server), member_of(client)
            assert ours.group is member_of(other).group
            with faults.injected(f"drop dir=in op=cdc side=server connection={ours.pipe.token}"):
                await server.aclose()
                await settle()
                assert not ours.pipe.is_finished
                yield ours, theirs, one, other


def is_held(member: Member) -> bool:
    return member in member.group.members or not member.ring.freed


@in_virtual_time
@pytest.mark.parametrize("way", ["ends it", "breaks off leaving", "leaves with nonsense"])
async def test_a_peer_that_ends_only_its_tcp_connection(way: str) -> None:
    """Its rings would be held for as long as the link works, however many it makes."""
    async with unanswered() as (ours, theirs, one, other):
        carrier = theirs.carrier
        assert carrier is not None
        if way != "ends it":
            data = MAGIC + bytes(MESSAGE_BYTES - len(MAGIC))
            carrier.send(data if way == "leaves with nonsense" else data[:8])
        theirs._drop_tcp()
        await anyio.sleep(LIMIT_S - 1)
        assert is_held(ours)
        await anyio.sleep(LONG_S)
        assert not is_held(ours)
        assert not ours.group.active
        await both_ways(one, other)
        assert one.path == other.path == "tcp"


@in_virtual_time
async def test_a_peer_that_is_stopped_harms_nobody() -> None:
    """Its TCP connection goes on: it may answer as late as it likes."""
    async with unanswered() as (ours, theirs, one, other):
        await anyio.sleep(LONG_S)
        assert is_held(ours)
        assert ours.group.active
        await both_ways(one, other)
        assert one.path == other.path == "rdma"
        theirs._drop_tcp()
        await anyio.sleep(LONG_S)
        assert not is_held(ours)


@in_virtual_time
async def test_the_limit_begins_when_the_tcp_connection_has_ended() -> None:
    async with unanswered() as (ours, theirs, one, _):
        await anyio.sleep(LONG_S)
        theirs._drop_tcp()
        await anyio.sleep(LIMIT_S - 1)
        assert ours.group.active
        assert one.path == "rdma"
        await anyio.sleep(LONG_S)
        assert not is_held(ours)
