"""A device that refuses a request: the bytes of that request were not carried out, whatever was before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aiordma.links import engine as engines
from tests.datagrams import pairs as datagram_pairs
from tests.health import until
from tests.processes import PATIENCE
from tests.streams import pairs as stream_pairs
from tests.world import DEVICE

from .refusing import block, hurried, refusing

if TYPE_CHECKING:
    from aiordma.links.link import Link

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(DEVICE != "soft", reason="the stand-in for its operations is the software device's"),
]

SIDES = pytest.mark.parametrize("side", ["client", "server"])


async def link_of(side: str) -> Link:
    (link,) = [group.link for group in (await engines.current()).all_groups if group.key[1] == side]
    return link


async def all_done(link: Link) -> None:
    """Everything that was posted has completed: a signalled request behind it has."""
    queue_pair: Any = link.queue_pair
    done = queue_pair.keepalives_done
    assert queue_pair.probe(*link.probe_target)
    await until(lambda: queue_pair.keepalives_done > done)


@SIDES
async def test_a_streams_bytes_arrive_over_tcp(side: str) -> None:
    client, server = await stream_pairs.rdma_pair()
    one, other = (client, server) if side == "client" else (server, client)
    async with one, other:
        link = await link_of(side)
        with anyio.fail_after(PATIENCE):
            await one.send(b"first")
            assert await other.receive_exactly(5) == b"first"
            await all_done(link)
            with refusing(link.parts.qp.pointer) as counts:
                await one.send(b"refused")
            assert counts.refused == 1
            await one.send(b", behind")
            assert await other.receive_exactly(15) == b"refused, behind"
            assert one.path == other.path == "tcp"


@SIDES
@pytest.mark.parametrize("size", [10, 9000])
async def test_datagrams_arrive_over_tcp(side: str, size: int) -> None:
    client, server = await datagram_pairs.negotiated_pair(mode="rdma")
    one, other = (client, server) if side == "client" else (server, client)
    async with one, other:
        link = await link_of(side)
        with anyio.fail_after(PATIENCE):
            await one.send(b"first")
            assert await other.receive() == b"first"
            await all_done(link)
            with refusing(link.parts.qp.pointer) as counts:
                await one.send(b"1" * size)
            assert counts.refused == 1
            await one.send(b"behind")
            assert [await other.receive() for _ in range(2)] == [b"1" * size, b"behind"]
            assert one.path == other.path == "tcp"


@SIDES
async def test_others_on_the_link_lose_nothing(side: str) -> None:
    """The request of one stream is refused, and what another has placed before is announced by none."""
    pairs = [await stream_pairs.rdma_pair() for _ in range(2)]
    if side == "server":
        pairs = [pair[::-1] for pair in pairs]
    (one, other), (beside, peer) = pairs
    async with one, other, beside, peer:
        link = await link_of(side)
        with anyio.fail_after(PATIENCE):
            await all_done(link)
            for _ in range(10):
                assert beside.send_nowait(b"placed") == 6
            with refusing(link.parts.qp.pointer) as counts:
                assert one.send_nowait(b"refused") == 7
            assert counts.refused == 1
            await beside.send(b"behind")
            assert await peer.receive_exactly(66) == b"placed" * 10 + b"behind"
            assert await other.receive_exactly(7) == b"refused"


@SIDES
async def test_the_program_sends_on_before_the_loop_knows(side: str) -> None:
    """A request that is posted for a blocked loop is refused. The loop hears of it in its next turn, and the
    program goes on until then: nothing of what it sends may pass what was refused.
    """
    client, server = await datagram_pairs.negotiated_pair(mode="rdma")
    one, other = (client, server) if side == "client" else (server, client)
    streams = await stream_pairs.negotiated_pair(mode="rdma")
    beside, peer = streams if side == "client" else streams[::-1]
    async with one, other, beside, peer:
        link = await link_of(side)
        messages = [b"%d" % number for number in range(10)]
        with anyio.fail_after(PATIENCE):
            await one.send(b"first")
            assert await other.receive() == b"first"
            with hurried(), refusing(link.parts.qp.pointer, late=True) as counts:
                while True:
                    await all_done(link)
                    for message in messages:
                        one.send_nowait(message)
                    assert beside.send_nowait(b"before") == 6
                    block(counts)
                    if counts.refused:
                        break
                    assert [await other.receive() for _ in messages] == messages
                    assert await peer.receive_exactly(6) == b"before"
                for message in messages:
                    one.send_nowait(message)
                assert beside.send_nowait(b" behind") == 7
                assert (counts.refused, counts.taken_behind) == (1, 0)
            assert [await other.receive() for _ in messages * 2] == messages * 2
            assert await peer.receive_exactly(13) == b"before behind"
            assert one.path == other.path == "tcp"
