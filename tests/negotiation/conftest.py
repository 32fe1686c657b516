from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aiordma.errors import Code, NegotiationError
from aiordma.links import engine as links_engine
from aiordma.negotiation import peer_cache

from .fake import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiordma.config import Config


@pytest.fixture(autouse=True)
def no_memory_of_peers() -> Iterator[None]:
    peer_cache.forget()
    yield
    peer_cache.forget()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Both ends can use RDMA, on a fake engine; no offer may be left behind."""
    engine = Engine()

    async def current(config: Config) -> Engine:
        await engine.trouble.at("find")
        return engine

    monkeypatch.setattr(links_engine, "current", current)
    yield engine
    assert engine.leaks == []


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No end can use RDMA."""

    async def current(config: Config) -> Engine:
        raise NegotiationError(Code.NO_DEVICE, "test")

    monkeypatch.setattr(links_engine, "current", current)
