"""The device takes no receive: the peer must not be left to believe that the link still works."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from aiordma import connect, faults, listen
from aiordma.config import Config
from aiordma.datapath._qp import QueuePair
from aiordma.errors import VerbsError
from tests.processes import PATIENCE
from tests.refusing import no_receives
from tests.roles import LOCAL
from tests.world import DEVICE

from .pairs import a_pair, member_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiordma.links.link import Link
    from aiordma.streams.stream import RdmaStream

pytestmark = pytest.mark.anyio

CONFIG = Config(device=DEVICE)
COUNT = 200  # more than a window has room for


def link_of(stream: RdmaStream) -> Link:
    return member_of(stream)._link


@pytest.fixture(params=["plain", "filtered"])
def filtered(request: pytest.FixtureRequest) -> Iterator[None]:
    """With and without a filter on the links, which takes messages another way."""
    if request.param == "filtered":
        faults.listen_in(lambda *_: None)
    yield
    faults.listen_in(None)


async def send_singly(stream: RdmaStream) -> None:
    """Each byte is announced by a message of its own."""
    for _ in range(COUNT):
        await stream.send(b"x")
        await anyio.lowlevel.checkpoint()


@pytest.mark.usefixtures("filtered")
@pytest.mark.parametrize("refusing", ["client", "server"])
async def test_a_stream_loses_no_byte(refusing: str) -> None:
    """The link fails, and its streams leave it."""
    async with a_pair(CONFIG) as (client, server):
        sender, receiver = (client, server) if refusing == "server" else (server, client)
        await sender.send(b"begun")
        assert await receiver.receive() == b"begun"
        link = link_of(receiver)
        with no_receives(link.parts.qp.pointer, last=1) as refusals, anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send_singly, sender)
                assert await receiver.receive_exactly(COUNT) == b"x" * COUNT
        assert refusals.refused == 1
        assert link.queue_pair.failed
        assert isinstance(link.failure, VerbsError)
        assert sender.path == receiver.path == "tcp"


async def test_a_link_that_gets_no_receives_is_not_made() -> None:
    """The stream begins on TCP, and nothing is kept of the link that was to be."""
    other = Config(device=DEVICE, traffic_class=32)  # for which there is another link
    async with a_pair(CONFIG) as (known, _), listen(LOCAL, 0, config=other) as listener:
        with no_receives(link_of(known).parts.qp.pointer, only=False, first=3), anyio.fail_after(PATIENCE):
            async with await connect(LOCAL, listener.port, config=other) as client:
                async with await listener.accept() as server:
                    await client.send(b"there")
                    assert await server.receive() == b"there"
                assert client.path == "tcp"
        gc.collect()
        assert len([each for each in gc.get_objects() if type(each) is QueuePair]) == 2
