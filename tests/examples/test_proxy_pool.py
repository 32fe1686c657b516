"""The front's shared lanes: when one is lost, and when none opens."""

from __future__ import annotations

import asyncio
import socket

import proxy.pool
import pytest
from proxy.back import Back
from proxy.lane import BackAway, Lane
from proxy.net import Address, Mode
from proxy.pool import Dialer, SharedLanes

from tests.world import SLOWER

from .conftest import MODES

NOWHERE = Address("127.0.0.1", 1)


class OneLane(Dialer):
    """Opens one lane, on one end of a socket pair, and refuses a second one."""

    def __init__(self) -> None:
        super().__init__(NOWHERE, "tcp", 5)
        self.far, self.near = socket.socketpair()
        self.near.setblocking(False)

    async def open(self, protocol: int) -> Lane:
        if self.opened:
            raise BackAway("nobody there")
        self.opened += 1
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=self.near)
        return Lane(transport)


class Waiter:
    """Waits for lanes as a client does."""

    def __init__(self) -> None:
        self.told = asyncio.Event()

    def lanes_changed(self) -> None:
        self.told.set()


def test_a_lost_lane_is_given_to_nobody() -> None:
    async def main() -> None:
        dialer = OneLane()
        lanes = SharedLanes(dialer, 2, 1)
        waiter = Waiter()
        lanes.wait(waiter)
        lanes.start()
        await waiter.told.wait()
        lane = lanes.pick()
        assert lane is not None
        picked: list[Lane | None] = []
        lane.on_closed = lambda: picked.append(lanes.pick())
        lanes.wait(waiter)
        waiter.told.clear()
        dialer.far.close()
        await waiter.told.wait()
        assert picked == [None]
        assert lanes.reason == "nobody there"
        await lanes.close()

    asyncio.run(main())


@pytest.mark.parametrize("mode", [*MODES, "auto"])
@pytest.mark.parametrize("host", ["server..example", "x" * 64 + ".example"])
def test_a_name_that_is_none_is_told(host: str, mode: Mode) -> None:
    async def main() -> None:
        lanes = SharedLanes(Dialer(Address(host, 1), mode, 5 * SLOWER), 2, 1)
        waiter = Waiter()
        lanes.wait(waiter)
        lanes.start()
        await waiter.told.wait()
        assert "label" in str(lanes.reason)
        await lanes.close()

    asyncio.run(main())


def test_a_failure_that_nobody_expected_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*args: object) -> None:
        raise RuntimeError("a mistake")

    async def main() -> None:
        monkeypatch.setattr(proxy.pool, "connect", broken)
        dialer = Dialer(NOWHERE, "tcp", 5)
        with pytest.raises(BackAway, match="RuntimeError: a mistake"):
            await dialer.open(2)
        assert "Traceback" in caplog.text
        lanes = SharedLanes(dialer, 2, 1)
        for _ in range(2):  # it goes on trying
            waiter = Waiter()
            lanes.wait(waiter)
            lanes.start()
            await waiter.told.wait()
            assert lanes.reason == "RuntimeError: a mistake"
        await lanes.close()

    asyncio.run(main())


def test_a_client_that_fails_takes_the_lanes_from_nobody() -> None:
    class Broken:
        def lanes_changed(self) -> None:
            raise RuntimeError("a mistake")

    async def main() -> None:
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        dialer = OneLane()
        lanes = SharedLanes(dialer, 2, 1)
        waiters = [Waiter() for _ in range(4)]
        lanes.wait(Broken())
        for waiter in waiters:
            lanes.wait(waiter)
        lanes.start()
        for waiter in waiters:
            await waiter.told.wait()
        assert [str(exc) for exc in told] == ["a mistake"]
        dialer.far.close()
        lanes.wait(again := Waiter())
        await again.told.wait()
        assert lanes.reason == "nobody there"
        await lanes.close()

    asyncio.run(main())


def test_the_back_tells_when_the_name_of_the_server_is_none() -> None:
    async def main() -> None:
        back = Back(NOWHERE._replace(port=0), Address("server..example", 1), mode="tcp")
        await back.start()
        with pytest.raises(BackAway, match=r"redis-server at server\.\.example:1: .*label"):
            await Dialer(back.listen, "tcp", 60 * SLOWER).open(2)
        await back.stop(60 * SLOWER)

    asyncio.run(main())
