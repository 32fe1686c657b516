"""No client is granted more rings than the server's own setting allows, nor are all clients of an address."""

from __future__ import annotations

from typing import Any

import pytest

import aiordma
from aiordma.config import Config
from aiordma.links import engine as engines
from aiordma.links import pregranted
from aiordma.links.contact import ClientContact
from aiordma.links.pregranted import Grants
from tests.health import check_echo, check_end, nothing_left, until
from tests.negotiation.serving import serving
from tests.roles import LOCAL, echo
from tests.tuned import tuned
from tests.world import DEVICE

from .known import known_peer

pytestmark = pytest.mark.anyio


async def test_a_client_that_asks_for_more_than_the_server_s_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ClientContact.__init__

    def greedy(contact: ClientContact, *arguments: Any) -> None:
        own(contact, *arguments)
        contact.proposal = contact.proposal.changed(tickets=255)

    monkeypatch.setattr(ClientContact, "__init__", greedy)
    async with serving(config=Config(device=DEVICE)) as listener, known_peer(listener.port) as known:
        assert known.granter.limit == known.engine.config.tickets


async def test_rings_of_all_links_together_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's links are as many as it likes: those of one address get half of what may be granted."""
    config = tuned(device=DEVICE, ring_bytes=64 << 10, ticket_idle_ms=600_000)
    monkeypatch.setattr(pregranted, "_PART", config.memory_limit_bytes // (1 << 20))
    engine = await engines.current(config)
    async with nothing_left(), serving(echo, config=config) as listener:
        for traffic_class in range(0, 40, 4):
            own = config.changed(traffic_class=traffic_class)
            for _ in range(5):
                async with await aiordma.connect(LOCAL, listener.port, mode="rdma", config=own) as stream:
                    await check_echo(stream, b"one of many")
                    await check_end(stream)
        granters = [group.granter for group in engine.all_groups if group.granter is not None]
        held = sum(granter.held_bytes for granter in granters)
        assert len(granters) == 10
        assert held == engine.grants.held_bytes
        assert 256 << 10 < held <= 512 << 10
        await until(lambda: not any(group.members for group in engine.all_groups), engine.statistics)
        engine.retire_idle(engine.waker.now() + 61)
        await until(lambda: not engine.all_groups, engine.statistics)
        assert engine.grants.held_bytes == 0


def test_one_address_leaves_rings_to_the_others() -> None:
    grants, most = Grants(), 1000
    for host, share in (("greedy", 50), ("second", 25), ("third", 12)):
        granted = 0
        while grants.has_room(host, 10, most):
            grants.hold(host, 10)
            granted += 1
        assert granted == share
    assert not grants.has_room("greedy", 10, most)
    grants.hold("greedy", -500)
    assert grants.held_bytes == 370
    assert grants.has_room("second", 10, most)
