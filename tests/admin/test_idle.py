"""How long a connection has been idle, as tools see it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma import wake
from aiordma.admin.describe import Moment, _idle
from aiordma.observe import connections
from tests.virtual import in_virtual_time
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")

CONFIG = aiordma.Config(device=DEVICE)


async def _many(stream: aiordma.RdmaStream) -> None:
    for _ in range(10):
        await stream.send(b"x" * 100)


async def _long(stream: aiordma.RdmaStream) -> None:
    await stream.send(bytes(3000))


async def _one(stream: aiordma.RdmaStream) -> None:
    await stream.send(b"x")


@pytest.mark.anyio
@in_virtual_time
@pytest.mark.parametrize("work", [_one, _many, _long])
async def test_who_only_sends_is_busy(work: Callable[[aiordma.RdmaStream], Awaitable[None]]) -> None:
    """Its peer reads nothing, so no message comes back."""
    async with (
        await aiordma.listen("127.0.0.1", config=CONFIG) as listener,
        await aiordma.connect("127.0.0.1", listener.port, config=CONFIG, mode="rdma") as stream,
        await listener.accept(),
    ):
        waker = wake.current()
        (client,) = [each for each in connections.of_loop(waker) if each.side == "client"]
        await anyio.sleep(100)
        (engine,) = waker.locals["engine"].devices.engines
        before = client.pipe.ring.position.active_at
        second = engine.poller.second
        assert second - before > 90
        await work(stream)
        assert client.pipe.ring.position.active_at >= second


@pytest.mark.parametrize(
    ("active_at", "now", "second", "idle"),
    [
        (100, 100.2, 100, 0.0),
        (100, 101.9, 100, 0.0),  # the engine looks late: it may have been busy since
        (100, 101.9, 101, 0.9),
        (100, 160.5, 160, 59.5),
        (100, 101.0, 101, 0.0),
        (0, 500.0, 500, 300.0),  # nothing ever came or went
    ],
)
def test_it_is_idle_for_at_least_so_long(active_at: int, now: float, second: int, idle: float) -> None:
    row: Any = SimpleNamespace(age_s=300.0)
    assert _idle(row, active_at, Moment(now, second)) == pytest.approx(idle)
