"""A listener announces its port to clients of the same host, without a byte on the wire."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aiordma
from aiordma.negotiation import announcement
from aiordma.negotiation.announcement import Announcement, is_announced
from tests.roles import free_port


def test_several_processes_of_one_port() -> None:
    port = free_port()
    assert not is_announced(port)
    several = [Announcement([port, port]) for _ in range(announcement._LISTENER.slots)]
    Announcement([port]).close()  # one too many does no harm
    for each in several:
        assert is_announced(port)
        each.close()
        each.close()
    assert not is_announced(port)


@pytest.mark.anyio
async def test_listeners() -> None:
    async with await aiordma.listen("127.0.0.1", 0) as listener:
        assert is_announced(listener.port)
    assert not is_announced(listener.port)
    async with await aiordma.listen("127.0.0.1", 0, mode="tcp") as listener:
        assert not is_announced(listener.port)


@pytest.mark.parametrize("mode", ["auto", "tcp"])
def test_servers_of_asyncio(mode: Any) -> None:
    async def main() -> None:
        server: Any = await aiordma.create_server(
            asyncio.Protocol, "127.0.0.1", 0, mode=mode, start_serving=False
        )
        port = server.sockets[0].getsockname()[1]
        assert not is_announced(port)
        await server.start_serving()
        assert is_announced(port) == (mode == "auto")
        server.close()
        assert not is_announced(port)

    asyncio.run(main())
