"""Links without connections end, whatever others do meanwhile, and the next connection has a new one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import aiordma
from aiordma.config import Config
from aiordma.links import engine as engines
from aiordma.links.group import LinkGroup
from tests.health import nothing_left, until
from tests.negotiation.serving import check_echo, echo, serving
from tests.roles import LOCAL
from tests.world import DEVICE

from .pregranted.known import known_peer

if TYPE_CHECKING:
    from aiordma.links.engine import Engine

pytestmark = pytest.mark.anyio

#: Without tickets, which keep a link at the server for longer.
CONFIG = Config(device=DEVICE, tickets=0)
#: Seconds: a client's patience with an unused link, and a server's.
CLIENTS, SERVERS = 60, 240


@pytest.fixture
def keeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients keep their idle links."""
    retire = LinkGroup.retire

    def keep(self: LinkGroup, now: float) -> None:
        if self.key.side != "client":
            retire(self, now)

    monkeypatch.setattr(LinkGroup, "retire", keep)


async def use(port: int, config: Config = CONFIG) -> None:
    async with await aiordma.connect(LOCAL, port, mode="rdma", config=config) as stream:
        await check_echo(stream)


async def unused(engine: Engine) -> float:
    """When that is so."""
    await until(lambda: not any(group.members for group in engine.all_groups), engine.statistics)
    return engine.waker.now()


@pytest.mark.usefixtures("keeping")
async def test_a_server_ends_the_links_that_clients_keep() -> None:
    """Each has a queue pair and slots, and a client may make one after the other."""
    engine = await engines.current(CONFIG)
    async with nothing_left(), serving(echo, config=CONFIG) as listener:
        for _ in range(3):
            await use(listener.port)
            now = await unused(engine)
            engine.retire_idle(now + SERVERS - 1)
            assert len(engine.groups) == 2
            engine.retire_idle(now + SERVERS + 1)
            await until(lambda: not engine.all_groups, engine.statistics)


@pytest.mark.usefixtures("keeping")
async def test_a_client_that_connects_when_the_server_ends_the_link() -> None:
    """It has not heard of that yet, and its Proposal is answered with a new link."""
    engine = await engines.current(CONFIG)
    async with nothing_left(), serving(echo, config=CONFIG) as listener:
        for _ in range(5):
            await use(listener.port)
            engine.retire_idle(await unused(engine) + SERVERS + 1)
            await use(listener.port)


@pytest.mark.usefixtures("keeping")
async def test_tickets_keep_a_link_for_twice_as_long() -> None:
    """An honest client has returned them long before: one that does not may use them at any moment."""
    async with serving(echo) as listener, known_peer(listener.port) as known:
        engine = known.engine
        now = await unused(engine)
        engine.retire_idle(now + SERVERS + 1)
        assert len(engine.groups) == 2
        await use(listener.port, engine.config)
        now = await unused(engine)
        engine.retire_idle(now + 2 * SERVERS + 1)
        await until(lambda: not engine.all_groups, engine.statistics)
        await use(listener.port, engine.config)


async def test_a_negotiation_with_another_host_keeps_no_link() -> None:
    """A client that always connects to someone kept its links to all others."""
    engine = await engines.current(CONFIG)
    async with nothing_left(), serving(echo, config=CONFIG) as listener:
        await use(listener.port)
        now = await unused(engine)
        for peer, kept in (f"{LOCAL}:1", True), ("", True), ("127.0.0.2:1", False):
            offer = await engine.propose(peer=peer)
            engine.retire_idle(now + CLIENTS + 1)
            assert not any(group.retired for group in engine.all_groups) == kept
            offer.abandon()
        await until(lambda: not engine.all_groups, engine.statistics)
