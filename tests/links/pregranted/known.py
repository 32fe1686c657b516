"""A listener and a client in one event loop, after the server has granted the client a ring."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiordma
from aiordma.config import Config
from aiordma.links import engine as engines
from tests.health import nothing_left, until
from tests.roles import LOCAL
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

    from aiordma.links.engine import Engine
    from aiordma.links.group import LinkGroup
    from aiordma.links.pregranted import RingGranter, RingHolder


class Known:
    """Both ends of the link."""

    def __init__(self, engine: Engine, port: int) -> None:
        self.engine, self.port = engine, port

    @property
    def client(self) -> LinkGroup:
        """The client's end of the link."""
        (found,) = (g for g in self.engine.all_groups if g.holder is not None and g.active)
        return found

    @property
    def holder(self) -> RingHolder:
        holder = self.client.holder
        assert holder is not None
        return holder

    @property
    def granter(self) -> RingGranter:
        (found,) = (g.granter for g in self.engine.all_groups if g.granter is not None and g.active)
        return found

    def counts(self) -> list[tuple[str, int]]:
        return [(group.key[1], len(group.pregranted)) for group in self.engine.all_groups]

    async def has_grant(self) -> None:
        await until(lambda: len(self.holder) > 0, self.counts)

    async def connect(self, **options: Any) -> aiordma.RdmaStream:
        return await aiordma.connect(LOCAL, self.port, mode="rdma", **options)


async def get_known(port: int) -> Known:
    """Connect as often as it takes to be granted a ring."""
    engine = await engines.current(Config(device=DEVICE))
    known = Known(engine, port)
    for _ in range(2):
        async with await known.connect() as stream:
            await stream.send_eof()
            async for _ in stream:
                pass
    return known


@asynccontextmanager
async def known_peer(port: int) -> AsyncIterator[Known]:
    """For connections that all end inside."""
    await engines.current(Config(device=DEVICE))
    async with nothing_left():
        known = await get_known(port)
        await known.has_grant()
        yield known


def forbid_asking(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    """No connection may be negotiated in full."""

    async def propose(kind: int = 0) -> None:
        raise AssertionError("this connection was to be opened at once")

    monkeypatch.setattr(engine, "propose", propose)
