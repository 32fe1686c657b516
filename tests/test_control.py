"""The facade: what a program can ask of aiordma without importing its internals."""

from __future__ import annotations

import asyncio
import json
import typing

import pytest

import aiordma
from aiordma import faults
from aiordma.links import engine as engines
from aiordma.links.statistics import DeviceStatistics, LinkStatistics
from aiordma.observe import trace

from .health import until
from .roles import port_of
from .world import DEVICE

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")

CONFIG = aiordma.Config(device=DEVICE)
RULE = "delay op=cdc nth=1000000 ms=1.0"


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
        port = port_of(server)
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


# ---- switch_path


@pytest.mark.anyio
async def test_a_stream_changes_its_path_and_comes_back() -> None:
    async with (
        await aiordma.listen("127.0.0.1", config=CONFIG) as listener,
        await aiordma.connect("127.0.0.1", listener.port, config=CONFIG, mode="rdma") as one,
        await listener.accept() as other,
    ):
        await one.send(b"by rdma ")
        assert await aiordma.switch_path(one, "rdma") == 0
        assert await aiordma.switch_path(one, "tcp", reason="a test") == 1
        await one.send(b"by tcp ")
        await until(lambda: one.path == other.path == "tcp")
        assert one.fallback_reason is not None
        assert one.fallback_reason.code == aiordma.Code.SWITCHED
        assert "a test" in one.fallback_reason.text
        assert await aiordma.switch_path(one, "tcp") == 0
        assert await aiordma.switch_path(one, "rdma") == 1
        await one.send(b"by rdma")
        await one.send_eof()
        assert b"".join([part async for part in other]) == b"by rdma by tcp by rdma"
        assert (one.path, other.path) == ("rdma", "rdma")


@pytest.mark.anyio
async def test_all_connections_of_a_loop_leave_rdma() -> None:
    assert await aiordma.switch_path(None, "tcp") == 0
    async with (
        await aiordma.listen("127.0.0.1", config=CONFIG) as listener,
        await aiordma.connect("127.0.0.1", listener.port, config=CONFIG, mode="rdma") as one,
        await listener.accept() as other,
    ):
        # Both ends are on this loop, and both are asked.
        assert await aiordma.switch_path(None, "tcp") == 2
        await until(lambda: one.path == other.path == "tcp")
        await one.send(b"still whole")
        assert await other.receive() == b"still whole"


@pytest.mark.anyio
async def test_datagram_connections_change_their_path() -> None:
    async with (
        await aiordma.listen_datagram("127.0.0.1", config=CONFIG) as listener,
        await aiordma.connect_datagram("127.0.0.1", listener.port, config=CONFIG, mode="rdma") as one,
        await listener.accept() as other,
    ):
        assert await aiordma.switch_path(one, "tcp") == 1
        await one.send(b"message")
        assert await other.receive() == b"message"
        await until(lambda: one.path == other.path == "tcp")


@pytest.mark.anyio
async def test_what_cannot_change_its_path() -> None:
    async with (
        await aiordma.listen("127.0.0.1", config=CONFIG) as listener,
        await aiordma.connect("127.0.0.1", listener.port, config=CONFIG, mode="tcp") as plain,
        await listener.accept(),
    ):
        assert await aiordma.switch_path(plain, "rdma") == 0
        with pytest.raises(ValueError, match="'udp' is not valid"):
            await aiordma.switch_path(plain, "udp")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="one by one"):
            await aiordma.switch_path(None, "rdma")
        with pytest.raises(TypeError, match="not a connection of aiordma"):
            await aiordma.switch_path(object(), "tcp")  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_asyncio_writers_change_their_path() -> None:
    server = await aiordma.start_server(_echo, "127.0.0.1", 0, config=CONFIG)
    async with server:
        port = port_of(server)
        reader, writer = await aiordma.open_connection("127.0.0.1", port, config=CONFIG, mode="rdma")
        assert await aiordma.switch_path(writer, "tcp") == 1
        await until(lambda: writer.get_extra_info("aiordma.path") == "tcp")
        assert await aiordma.switch_path(writer.transport, "rdma") == 1
        writer.write(b"hello")
        assert await reader.read() == b"hello"
        writer.close()
        await writer.wait_closed()


@pytest.mark.anyio
async def test_online_settings_change_while_the_engine_runs() -> None:
    with pytest.raises(RuntimeError, match="no engine is running in this event loop"):
        aiordma.change_settings(busy_poll_us=0)
    async with await aiordma.listen("127.0.0.1", config=CONFIG) as listener:
        async with await aiordma.connect("127.0.0.1", listener.port, config=CONFIG, mode="rdma") as stream:
            async with await listener.accept() as other:
                engine = engines.running()
                assert engine is not None
                changed = aiordma.change_settings(
                    busy_poll_us=7,
                    memory_limit_bytes=64 << 20,
                    keepalive_ms=1234,
                    slow_request_us=99,
                    filter=RULE,
                )
                assert (engine.config, engine.devices.config) == (changed, changed)
                assert engine.poller.busy_poll_budget_ns == 7000
                assert engine.pool.limit_bytes == 64 << 20
                assert {group.link._keepalive._idle for group in engine.all_groups} == {1.234}
                assert trace.recorder.settings.slow_request_us == 99
                assert [str(rule) for rule, _ in faults.rules().values()] == [RULE]
                await stream.send(b"four")
                assert await other.receive() == b"four"
                aiordma.change_settings(busy_poll_us=None, slow_request_us=0, filter=None)
                assert engine.poller.busy_poll_budget_ns > 7000
                assert trace.recorder.settings.slow_request_us == 0
                assert not faults.rules()


@pytest.mark.anyio
async def test_settings_that_cannot_be_changed_change_nothing() -> None:
    async with await aiordma.listen("127.0.0.1", config=CONFIG):
        engine = engines.running()
        assert engine is not None
        before = engine.config
        for changes, words in (
            ({"ring_bytes": 65536}, "ring_bytes is read when the engine starts"),
            ({"bsy_poll_us": 1}, "unknown setting 'bsy_poll_us'"),
            ({"busy_poll_us": -1}, "busy_poll_us=-1"),
        ):
            with pytest.raises(ValueError, match=words):
                aiordma.change_settings(**changes)
        assert engine.config is before
