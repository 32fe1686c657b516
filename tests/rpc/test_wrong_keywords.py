"""Keywords without a valid value: said at once, and no connection is left of it."""

from __future__ import annotations

from typing import Any

import pytest

from aiordma import rpc
from tests.health import until

pytestmark = pytest.mark.anyio

LOCAL = "127.0.0.1"
service = rpc.Service("count")


@service.method
async def up(n: int) -> list[int]:
    return list(range(n))


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
@pytest.mark.parametrize("keywords", [{"window": 0}, {"window": (1 << 30) + 1}, {"interceptors": 5}], ids=str)
async def test_a_client_is_not_made(mode: Any, keywords: dict[str, Any]) -> None:
    async with rpc.serve(service, LOCAL, mode=mode) as server:
        for _ in range(3):
            with pytest.raises((TypeError, ValueError)):
                async with rpc.connect(LOCAL, server.port, mode=mode, **keywords):
                    pass
        await until(lambda: not server.statistics().connections)
        async with rpc.connect(LOCAL, server.port, mode=mode) as client:
            assert await client.call("count.up", 2) == [0, 1]


@pytest.mark.parametrize("window", [0, -1, 1 << 31])
async def test_a_window_that_nobody_can_give(window: int) -> None:
    with pytest.raises(ValueError, match=f"window={window}"):
        rpc.Server(service, window=window)
    with pytest.raises(ValueError, match=f"window={window}"):
        async with rpc.serve(service, LOCAL, window=window):
            pass
    with pytest.raises(ValueError, match=f"window={window}"):
        rpc.connect_pool([(LOCAL, 1)], window=window)


async def test_a_stream_with_a_negative_window() -> None:
    async with rpc.serve(service, LOCAL) as server, rpc.connect(LOCAL, server.port) as client:
        with pytest.raises(ValueError, match="window=-1"):
            client.stream("count.up", 2, window=-1)
        assert await client.call("count.up", 1) == [0]
