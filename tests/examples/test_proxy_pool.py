"""The front's shared lanes between the loss of one and the next run of its keeper."""

from __future__ import annotations

import asyncio
import socket

from proxy.lane import BackAway, Lane
from proxy.net import Address
from proxy.pool import Dialer, SharedLanes


class OneLane(Dialer):
    """Opens one lane, on one end of a socket pair, and refuses a second one."""

    def __init__(self) -> None:
        super().__init__(Address("127.0.0.1", 1), "tcp", 5)
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
