"""The facade: what a program can ask of aiordma without importing its internals."""

from __future__ import annotations

import asyncio
import json
import typing

import pytest

import aiordma
from aiordma.links.statistics import DeviceStatistics, LinkStatistics

from .world import DEVICE

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")

CONFIG = aiordma.Config(device=DEVICE)


@pytest.mark.anyio
async def test_no_engine_no_statistics() -> None:
    assert aiordma.statistics() is None


def test_no_loop_no_statistics() -> None:
    with pytest.raises(RuntimeError):
        aiordma.statistics()


@pytest.mark.anyio
async def test_statistics_have_the_documented_keys() -> None:
    async with await aiordma.listen("127.0.0.1", config=CONFIG) as listener:
        async with await aiordma.connect("127.0.0.1", listener.port, config=CONFIG, mode="rdma") as stream:
            async with await listener.accept() as other:
                await stream.send(b"four")
                assert await other.receive() == b"four"
                found = aiordma.statistics()
    assert found is not None
    json.dumps(found)
    wanted = set(typing.get_type_hints(aiordma.EngineStatistics))
    assert set(found) | {"wire"} == wanted
    assert [set(row) for row in found["devices"]] == [set(typing.get_type_hints(DeviceStatistics))]
    assert [set(row) for row in found["links"]] == [set(typing.get_type_hints(LinkStatistics))] * 2
    assert {row["side"] for row in found["links"]} == {"client", "server"}
    assert sum(row["bytes_written"] for row in found["links"]) >= 4


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.read(100))
    writer.close()


@pytest.mark.asyncio
async def test_asyncio_transports_show_their_stream() -> None:
    server = await aiordma.start_server(_echo, "127.0.0.1", 0, config=CONFIG)
    async with server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await aiordma.open_connection("127.0.0.1", port, config=CONFIG, mode="rdma")
        writer.write(b"hello")
        assert await reader.read() == b"hello"
        info = writer.get_extra_info("aiordma.stream")
        assert isinstance(info, aiordma.StreamInfo)
        assert (info.path, info.fallback_reason) == ("rdma", None)
        assert info.statistics().bytes_sent == 5
        assert info.credit.available == 0, "the peer has closed"
        assert info.credit.limit == CONFIG.ring_bytes
        assert not [name for name in dir(info) if name.startswith("try_") or name in ("close", "abort")]
        writer.close()
        await writer.wait_closed()
        assert info.statistics().bytes_received == 5
