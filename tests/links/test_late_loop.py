"""An event loop that comes late, because something blocked it or the machine had no processor for it.

What has come meanwhile has come in time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aiordma.config import Config
from aiordma.links.engine import current
from aiordma.links.pregranted import RingGranter
from tests.health import check_echo, check_end
from tests.links.failover.test_first_contact import both_ways
from tests.links.pregranted.known import known_peer
from tests.negotiation.serving import serving
from tests.roles import echo
from tests.streams.pairs import rdma_pair
from tests.world import DEVICE

if TYPE_CHECKING:
    from aiordma.links.pregranted import EarlyOpen

pytestmark = pytest.mark.anyio


@pytest.mark.skipif(DEVICE != "soft", reason="a device of the kernel answers a moment later")
@pytest.mark.parametrize("side", ["client", "server"])
async def test_an_answer_that_nobody_has_looked_at_is_no_silence(side: str) -> None:
    """The timer of the engine may run before the completions are seen."""
    one, other = await rdma_pair()
    async with one, other:
        engine = await current()
        (link,) = [each.link for each in engine.all_groups if each.key[1] == side]
        keepalive: Any = link._keepalive
        link.suspect()
        assert keepalive.probing
        link.look(engine.waker.now() + 1000)
        assert not keepalive.probing
        await both_ways(one, other)
        assert one.path == other.path == "rdma"


async def test_a_server_that_has_taken_a_ticket_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's time is over when its loop looks, and the server's first message is there."""
    claim = RingGranter.claim
    looked: list[EarlyOpen] = []

    def claim_and_look(granter: RingGranter, *args: Any, **options: Any) -> Any:
        pipe = claim(granter, *args, **options)
        (early_open,) = known.holder.early_opens.values()
        assert not early_open.bound
        known.holder.look(early_open.deadline)
        looked.append(early_open)
        return pipe

    async with serving(echo, config=Config(device=DEVICE)) as listener, known_peer(listener.port) as known:
        monkeypatch.setattr(RingGranter, "claim", claim_and_look)
        async with await known.connect() as stream:
            await check_echo(stream)
            await check_end(stream)
        assert [early_open.bound for early_open in looked] == [True]
