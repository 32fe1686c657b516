"""A long message has come, and there is no memory to hand it over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aiordma.errors import LinkError
from aiordma.links.message_memory import MessageMemory
from tests.health import settle, until

from .channel_ends import End
from .link_pairs import connect_channels

if TYPE_CHECKING:
    from .link_pairs import Open

pytestmark = pytest.mark.anyio


def poor(memory: MessageMemory) -> bool:
    raise MemoryError


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "later"])
async def test_a_message_that_cannot_be_handed_over_ends_its_channel(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """None is left out, and the others on the link go on."""
    async with open_engine(fragment_bytes=4096) as engine:
        a, b = await connect_channels(engine)
        beside, peer = await connect_channels(engine)
        at_a, at_b, at_peer = End(a), End(b), End(peer)
        assert a.try_send(b"", bytes(100_000))
        inbox: Any = b
        if waits:
            await until(lambda: b.statistics().receive_high_water > 0)
            b.on_message = None
            await settle(100)
        monkeypatch.setattr(MessageMemory, "may_lend", poor)
        inbox.on_message = at_b._on_message
        a.try_send(b"behind")
        assert isinstance(await at_b.ended(), MemoryError)
        assert isinstance(await at_a.ended(), LinkError)
        assert at_b.messages == []
        monkeypatch.undo()
        assert beside.try_send(b"", bytes(100_000))
        assert await at_peer.received(1) == [bytes(100_000)]
        a.close()
        b.close()
        await until(lambda: a.is_finished and b.is_finished)
