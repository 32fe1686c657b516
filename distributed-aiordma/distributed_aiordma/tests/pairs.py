"""Both ends of a comm in one process, for tests."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from distributed.comm import connect, listen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from distributed_aiordma.comm import RdmaComm

__all__ = ["comm_pair", "until"]


@asynccontextmanager
async def comm_pair(
    address: str = "rdma://127.0.0.1",
    *,
    listen_args: dict[str, Any] | None = None,
    connect_args: dict[str, Any] | None = None,
) -> AsyncIterator[tuple[RdmaComm, RdmaComm]]:
    """(client's end, server's end), aborted afterwards."""
    accepted: asyncio.Future[RdmaComm] = asyncio.get_running_loop().create_future()

    async def handle(comm: RdmaComm) -> None:
        accepted.set_result(comm)

    async with listen(address, handle, **(listen_args or {})) as listener:
        client = await connect(listener.contact_address, **(connect_args or {}))
        server = await accepted
        try:
            yield client, server
        finally:
            client.abort()
            server.abort()


async def until(condition: Any) -> None:
    """Wait until ``condition()`` holds, for at most 10 s."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # conditions of any kind
            await asyncio.sleep(0.005)
