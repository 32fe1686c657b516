"""One completion queue for all queue pairs of an event loop: what befalls one does not concern the others."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aiordma import connect, listen
from aiordma.config import Config
from aiordma.datapath._faults import LinkFilter
from aiordma.datapath._ud import UdPort
from aiordma.errors import Code
from aiordma.links import engine as engines
from aiordma.proto.filter import Direction
from aiordma.verbs.memory.budget import MemoryLimitError
from tests.links.pairs import a_pair, member_of
from tests.processes import PATIENCE
from tests.roles import LOCAL
from tests.virtual import in_virtual_time
from tests.world import DEVICE

if TYPE_CHECKING:
    from aiordma.links.engine import Engine

pytestmark = pytest.mark.anyio

CONFIG = Config(device=DEVICE)
#: For which there is another link.
OTHER = Config(device=DEVICE, traffic_class=32)
MOST = 65536


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


def port(engine: Engine) -> UdPort:
    """One that takes a place, and has no queue pair."""
    return UdPort(
        engine.poller, 0, 0, recv_addr=0, recv_lkey=0, recv_count=0, send_addr=0, send_lkey=0, sq_depth=0,
        max_inline=0, mtu=0, queue=deque(), most=0, keep=None,
    )  # fmt: skip


async def test_more_queue_pairs_than_can_be_told_apart() -> None:
    """What comes then does without RDMA, and is told why."""
    engine = await engines.current(CONFIG)
    ports: list[Any] = []
    try:
        with pytest.raises(MemoryLimitError, match=f"{MOST} queue pairs.*close connections") as caught:
            ports.extend(iter(lambda: port(engine), None))
        assert caught.value.code == Code.LIMIT_REACHED
        async with listen(LOCAL, 0, config=CONFIG) as listener:
            async with await connect(LOCAL, listener.port, config=CONFIG) as client:
                async with await listener.accept() as server:
                    await client.send(b"there")
                    assert await server.receive() == b"there"
                reason = client.fallback_reason
        assert client.path == "tcp"
        assert reason is not None
        assert reason.code == Code.LIMIT_REACHED
    finally:
        for each in ports:
            each.close()
