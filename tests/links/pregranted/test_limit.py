"""A client cannot have more rings granted than the server's own setting allows."""

from __future__ import annotations

from typing import Any

import pytest

from aiordma.config import Config
from aiordma.links.contact import ClientContact
from tests.negotiation.serving import serving
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
