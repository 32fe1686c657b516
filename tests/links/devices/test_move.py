"""Two devices: when a link fails, its streams move to the other one, from the exact byte."""

from __future__ import annotations

import logging
from random import Random

import anyio
import pytest

import aiordma
from aiordma.config import Config
from aiordma.errors import Code
from aiordma.verbs import softlib
from tests.health import ROUNDS, check_echo, descriptors, until
from tests.links.failover.traffic import both_ways
from tests.processes import PATIENCE
from tests.roles import LOCAL
from tests.tuned import tuned

from .kit import NAMES, TWO, WAYS, device_in_use, fail, groups_in_use, pair, two_devices

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("way", WAYS)
async def test_an_idle_stream_moves(way: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aiordma.link")
    async with two_devices() as devices, await aiordma.listen(LOCAL, 0, config=tuned(**TWO)) as listener:
        one, other = await pair(listener)
        assert device_in_use(devices) == "soft0"
        fail(devices, way)
        await until(lambda: devices.moved == 1 and one.path == other.path == "rdma")
        assert device_in_use(devices) == "soft1"
        assert one.fallback_reason is None
        await one.send(b"forth")
        assert await other.receive() == b"forth"
        await other.send(b"back")
        assert await one.receive() == b"back"
        statistics = devices.best().statistics()
        assert statistics["streams_moved"] == 1
        assert statistics["streams_waiting"] == 0
        texts = [record.getMessage() for record in caplog.records]
        assert any("lost" in text for text in texts)
        assert any("go on over RDMA, on device soft1" in text for text in texts)
        for stream in (one, other):
            await stream.aclose()


@pytest.mark.parametrize("way", WAYS)
async def test_under_load_to_and_fro(way: str) -> None:
    """Bytes in both directions; the device that they are on fails again and again."""
    random = Random()
    async with two_devices() as devices, await aiordma.listen(LOCAL, 0, config=tuned(**TWO)) as listener:
        one, other = await pair(listener)
        async with both_ways(one, other) as (forth, back):
            for count in range(4 * ROUNDS):
                await forth.moves_on(random)
                await back.moves_on(random)
                fail(devices, way)
                moved = count + 1
                await until(
                    lambda moved=moved: (
                        devices.moved >= moved  # type: ignore[misc]
                        and one.path == other.path == "rdma"
                    )
                )
                for name in NAMES:
                    softlib.load().port(name, up=True)
        for stream in (one, other):
            await stream.aclose()


async def echo(stream: aiordma.RdmaStream) -> None:
    async with stream:
        async for data in stream:
            await stream.send(data)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["port", "one end"])
async def test_many_streams_move_together(way: str) -> None:
    """They share the new link as they shared the old one, and no byte is lost or repeated."""
    # Without pre-granted rings: on one, a stream cannot fail over before the server has accepted it.
    settings = {**TWO, "ring_bytes": 16384, "tickets": 0}
    count = 200
    async with two_devices(ring_bytes=16384, tickets=0) as devices:
        async with await aiordma.listen(LOCAL, 0, config=tuned(**settings), mode="rdma") as listener:
            async with anyio.create_task_group() as server:
                server.start_soon(listener.serve, echo)
                streams = [
                    await aiordma.connect(LOCAL, listener.port, config=tuned(**settings))
                    for _ in range(count)
                ]
                with anyio.fail_after(PATIENCE):
                    async with anyio.create_task_group() as tasks:
                        for number, stream in enumerate(streams):
                            tasks.start_soon(check_echo, stream, Random(number).randbytes(40_000))
                        await until(lambda: any(group.moved_here == 0 for group in groups_in_use(devices)))
                        fail(devices, way)
                    await until(lambda: devices.moved >= count)
                    async with anyio.create_task_group() as tasks:
                        for number, stream in enumerate(streams):
                            tasks.start_soon(check_echo, stream, Random(~number).randbytes(20_000))
                assert {stream.path for stream in streams} == {"rdma"}
                assert len(groups_in_use(devices)) == 2
                for stream in streams:
                    await stream.aclose()
                await until(lambda: not groups_in_use(devices))
                server.cancel_scope.cancel()


async def test_both_devices_fail_and_one_comes_back() -> None:
    """With nothing to move to, streams wait on TCP, and go on by RDMA when a port is up again."""
    async with two_devices() as devices:
        config = tuned(**TWO)
        async with await aiordma.listen(LOCAL, 0, config=config) as listener:
            one, other = await pair(listener)
            fail(devices, "port")
            await until(lambda: devices.moved == 1)
            fail(devices, "port")
            await until(lambda: devices.statistics()["streams_waiting"] == 1)
            assert one.path == other.path == "tcp"
            assert one.fallback_reason is not None
            assert one.fallback_reason.code == Code.LINK_LOST
            await one.send(b"on TCP")
            assert await other.receive() == b"on TCP"
            # New connections use TCP, too.
            late = await aiordma.connect(LOCAL, listener.port, config=config)
            assert late.path == "tcp"
            late_other = await listener.accept()
            rows = devices.statistics()["devices"]
            assert [row["state"] for row in rows] == ["down", "down"]
            assert all("PORT_ERR" in row["why"] or "not active" in row["why"] for row in rows)
            softlib.load().port("soft1", up=True)
            await until(lambda: one.path == other.path == "rdma")
            assert device_in_use(devices) == "soft1"
            await one.send(b"on RDMA")
            assert await other.receive() == b"on RDMA"
            for stream in (one, other, late, late_other):
                await stream.aclose()


async def test_a_device_is_tried_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting stream tries again without an event of the device."""
    async with two_devices(device_retry_ms=20) as devices:
        async with await aiordma.listen(LOCAL, 0, config=tuned(**TWO)) as listener:
            one, other = await pair(listener)
            refused = 0

            def refuse(index: int) -> None:
                nonlocal refused
                refused += 1
                raise OSError("the device is away")

            monkeypatch.setattr(devices, "_open", refuse)
            fail(devices, "link")
            # At once, and then after a while, again and again.
            await until(lambda: refused > 12)
            assert one.path == other.path == "tcp"
            monkeypatch.undo()
            await until(lambda: devices.moved == 1 and one.path == other.path == "rdma")
            await one.send(b"x")
            assert await other.receive() == b"x"
            for stream in (one, other):
                await stream.aclose()


async def test_new_connections_go_to_the_device_that_works() -> None:
    async with two_devices() as devices:
        config = tuned(**TWO)
        async with await aiordma.listen(LOCAL, 0, config=config) as listener:
            assert [row["state"] for row in devices.statistics()["devices"]] == ["open", "not opened"]
            softlib.load().port("soft0", up=False)
            await until(lambda: "PORT_ERR" in devices.health.why_down(0))
            for _ in range(3):
                one, other = await pair(listener)
                assert device_in_use(devices) == "soft1"
                for stream in (one, other):
                    await stream.aclose()
                await until(lambda: not groups_in_use(devices))
            softlib.load().port("soft0", up=True)
            await until(lambda: not devices.health.why_down(0))
            one, other = await pair(listener)
            for stream in (one, other):
                await stream.aclose()


async def test_a_half_closed_stream_stays_on_tcp() -> None:
    async with two_devices() as devices, await aiordma.listen(LOCAL, 0, config=tuned(**TWO)) as listener:
        one, other = await pair(listener)
        await one.send_eof()
        with pytest.raises(anyio.EndOfStream):
            await other.receive()
        fail(devices, "link")
        await until(lambda: one.path == other.path == "tcp")
        await other.send(b"still")
        assert await one.receive() == b"still"
        assert devices.moved == 0
        for stream in (one, other):
            await stream.aclose()


async def test_one_device_stays_as_it_was() -> None:
    """No stream looks for another link, and the peer knows that there is none."""
    async with two_devices(soft_devices=1) as devices:
        config = Config(device="soft")
        async with await aiordma.listen(LOCAL, 0, config=config) as listener:
            assert not devices.several
            one, other = await pair(listener, soft_devices=1)
            (client,) = [group for group in groups_in_use(devices) if group.key[1] == "client"]
            assert client.peer_links == 1
            assert not client.has_another
            fail(devices, "link")
            await until(lambda: one.path == other.path == "tcp")
            await one.send(b"x")
            assert await other.receive() == b"x"
            assert one.path == "tcp"
            assert devices.statistics()["streams_waiting"] == 0
            for stream in (one, other):
                await stream.aclose()


async def test_nothing_is_left_of_devices_that_were_opened_anew() -> None:
    """Descriptors and engines do not grow with the failures."""
    counts = []
    for _ in range(3):
        async with two_devices() as devices, await aiordma.listen(LOCAL, 0, config=tuned(**TWO)) as listener:
            one, other = await pair(listener)
            for count in range(4):
                fail(devices, "device")
                await until(lambda count=count: devices.moved > count)  # type: ignore[misc]
                await until(lambda other=other: other.path == "rdma")  # type: ignore[misc]
            await until(lambda: not devices._spent, lambda: devices.statistics())
            assert len(devices.engines) <= 2
            for stream in (one, other):
                await stream.aclose()
        counts.append(len(descriptors()))
    assert counts[1] == counts[2]
