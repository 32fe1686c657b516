"""A first contact that is given up when its link is up: whether the peer knows the link is found out."""

from __future__ import annotations

import pytest

from aiordma.links.contact import ClientContact
from aiordma.links.engine import current
from tests.health import until
from tests.links.failover.test_first_contact import both_ways
from tests.streams.pairs import rdma_pair

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("first", [True, False], ids=["first contact", "later"])
async def test_a_contact_whose_link_is_up(first: bool) -> None:
    one, other = await rdma_pair()
    async with one, other:
        engine = await current()
        (group,) = [each for each in engine.all_groups if each.key[1] == "client"]
        assert group.active
        probes = group.link.statistics()["keepalives"]
        contact = ClientContact(engine, 0, 0, group.key[2], group.peer)
        contact.group, contact.first_contact = group, first
        contact.abandon()
        await until(lambda: group.link.statistics()["keepalives"] > probes)
        await both_ways(one, other)
        assert one.path == other.path == "rdma"
