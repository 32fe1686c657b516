"""A model server with one client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma.valkey
from tests.processes import PATIENCE
from tests.roles import LOCAL
from tests.world import DEVICE

from .model import ModelServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIORDMA_DEVICE", DEVICE)


@pytest.fixture
async def server(anyio_backend: Any) -> AsyncIterator[ModelServer]:
    made = await ModelServer.make()
    yield made
    made.close()


async def connected(server: ModelServer, **options: Any) -> aiordma.valkey.ValkeyStream:
    """A client of it; both ends have registered their buffers."""
    streams = []

    async def connect() -> None:
        streams.append(await aiordma.valkey.connect(LOCAL, server.port, **{"buffer_bytes": 4096, **options}))

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connect)
            await server.accept()
        await server.expect(3)
    return streams[0]
