"""Two processes, of which one or both have a second device; calls and datagrams; a peer that is killed."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

import aiordma
from aiordma import rpc
from tests.health import check_echo, until
from tests.processes import FULL_PATIENCE, process
from tests.roles import LOCAL
from tests.tuned import tuned

from .kit import TWO, fail, groups_in_use, two_devices

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SERVER = "tests.links.devices.roles:echo_server"


@pytest.mark.parametrize("where", ["here", "there"])
@pytest.mark.parametrize(("mine", "theirs"), [(2, 2), (2, 1), (1, 2)])
async def test_either_end_has_a_second_device(mine: int, theirs: int, where: str) -> None:
    """A device fails at one end; the other end notices."""
    way = "port" if (mine if where == "here" else theirs) == 2 else "link"
    with process(SERVER, **{**TWO, "soft_devices": theirs, "tickets": 0}) as server:
        port = await server.heard()
        async with two_devices(soft_devices=mine, tickets=0) as devices:
            config = tuned(**{**TWO, "soft_devices": mine, "tickets": 0})
            stream = await aiordma.connect(LOCAL, port, config=config, mode="rdma")
            await check_echo(stream)
            if where == "here":
                fail(devices, way)
            else:
                server.say(way)
            await until(lambda: devices.moved == 1 and stream.path == "rdma")
            await check_echo(stream)
            await stream.aclose()


async def test_a_peer_that_is_killed_on_the_way() -> None:
    """Nothing is left of it, and nothing waits for it."""
    with process(SERVER, **{**TWO, "tickets": 0}) as server:
        port = await server.heard()
        async with two_devices(tickets=0) as devices:
            config = tuned(**{**TWO, "tickets": 0})
            streams = [await aiordma.connect(LOCAL, port, config=config, mode="rdma") for _ in range(20)]
            for stream in streams:
                await check_echo(stream, b"x" * 1000)
            fail(devices, "port")
            await until(lambda: devices.moved > 0)
            server.kill()
            for stream in streams:
                with pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream)):
                    await stream.receive()
                await stream.aclose()
            await until(lambda: not groups_in_use(devices))


async def test_a_pool_connects_again_over_the_other_device() -> None:
    service = rpc.Service("numbers")

    @service.method
    async def double(value: int) -> int:
        return 2 * value

    async with two_devices() as devices:
        config = tuned(**TWO)
        async with (
            rpc.serve(service, LOCAL, 0, config=config) as server,
            rpc.connect_pool([(LOCAL, server.port)], config=config) as client,
        ):
            assert await client.call("numbers.double", 1, timeout=FULL_PATIENCE) == 2
            for _ in range(2):
                before = {group.engine.backend.name for group in groups_in_use(devices)}
                fail(devices, "link")

                async def again() -> bool:
                    try:
                        return bool(await client.call("numbers.double", 2, timeout=FULL_PATIENCE) == 4)
                    except rpc.RpcError:
                        return False  # the call that was under way when the link failed

                while not await again():
                    await anyio.lowlevel.checkpoint()
                await until(lambda: len(groups_in_use(devices)) == 2)
                after = {group.engine.backend.name for group in groups_in_use(devices)}
                assert not before & after


async def test_connected_datagrams_move() -> None:
    async with two_devices() as devices:
        config = tuned(**TWO)
        async with await aiordma.listen_datagram(LOCAL, 0, config=config) as listener:
            one = await aiordma.connect_datagram(LOCAL, listener.port, config=config, mode="rdma")
            other = await listener.accept()
            await one.send(b"?")
            assert await other.receive() == b"?"
            fail(devices, "port")
            for number in range(50):
                await one.send(b"%d" % number)
                assert await other.receive() == b"%d" % number
            await until(lambda: devices.moved == 1)
            await until(lambda: one.path == other.path == "rdma")
            await other.send(b"")
            assert await one.receive() == b""
            for each in (one, other):
                await each.aclose()
