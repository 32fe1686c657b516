"""Two peers in one event loop."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aiordma import memory
from aiordma.config import Config
from tests.health import until
from tests.roles import LOCAL
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATHS = ["rdma", "tcp"]


def config_of(path: str) -> Config:
    return Config(device=DEVICE if path == "rdma" else "none")


@asynccontextmanager
async def pair(path: str, config: Config | None = None) -> AsyncIterator[tuple[memory.Peer, memory.Peer]]:
    """Client and server."""
    config = config or config_of(path)
    async with (
        memory.serve(LOCAL, config=config) as server,
        await memory.connect(LOCAL, server.port, config=config) as client,
    ):
        await until(lambda: bool(server.peers))
        assert client.path == path
        yield client, next(iter(server.peers))
