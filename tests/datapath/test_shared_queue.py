"""One completion queue for all queue pairs of an event loop: what befalls one does not concern the others."""

from __future__ import annotations

import anyio
import pytest

from aiordma.config import Config
from aiordma.datapath._faults import LinkFilter
from aiordma.proto.filter import Direction
from tests.links.pairs import a_pair, member_of
from tests.processes import PATIENCE
from tests.virtual import in_virtual_time
from tests.world import DEVICE

pytestmark = pytest.mark.anyio

CONFIG = Config(device=DEVICE)
#: For which there is another link.
OTHER = Config(device=DEVICE, traffic_class=32)


@in_virtual_time
@pytest.mark.parametrize("error", [MemoryError, ValueError])
async def test_what_others_have_put_off_is_done(error: type[Exception], anyio_backend: object) -> None:
    """A link that fails to do its deferred work keeps none of the others from theirs."""
    fails = False

    def decide(direction: Direction, *_: object) -> None:
        if fails and direction is Direction.OUT:
            raise error

    async with a_pair(CONFIG) as (victim, peer), a_pair(OTHER) as (sender, receiver):
        link = member_of(victim)._link
        link.filter = LinkFilter(link.queue_pair, link, decide)
        link.filter.attach()
        for _ in range(10):  # the first ones go at once
            victim.send_nowait(b"x")
            sender.send_nowait(b"y")
        fails = True
        with anyio.fail_after(PATIENCE):
            assert await receiver.receive_exactly(10) == b"y" * 10
            await receiver.send(b"z")
            assert await sender.receive() == b"z"
        fails = False
        assert link.queue_pair.failed == (error is MemoryError)
        link.filter.detach()
        victim.abort()
        peer.abort()
