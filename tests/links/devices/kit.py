"""One event loop with two software devices, at both ends of its connections, and ways to break a link."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiordma
from aiordma.errors import LinkError
from aiordma.links import engine as engines
from aiordma.verbs import softlib
from tests.health import until
from tests.roles import LOCAL
from tests.tuned import tuned

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiordma.links.devices import Devices
    from aiordma.links.group import LinkGroup

TWO: dict[str, Any] = {"device": "soft", "soft_devices": 2, "device_retry_ms": 3_600_000}
NAMES = ("soft0", "soft1")
WAYS = ("port", "device", "link", "qp", "one end")


@asynccontextmanager
async def two_devices(**settings: Any) -> AsyncIterator[Devices[engines.Engine]]:
    """Of the running loop. All connections must have ended at the end; nothing may be left then."""
    engine = await engines.current(tuned(**{**TWO, **settings}))
    devices = engine.devices
    try:
        yield devices
        await until(lambda: not groups_in_use(devices), lambda: devices.best().statistics())
        for each in devices.engines:
            for group in each.all_groups:
                assert group.rings.used_bytes == group.pregranted.ring_bytes
            parts = [group.link.parts for group in each.all_groups] + each.cache.parked
            tickets = sum(group.pregranted.held_bytes for group in each.all_groups)
            used = each.pool.statistics().used_bytes
            assert used - tickets == sum(part.pool_bytes for part in parts), each.statistics()
    finally:
        for name in NAMES:
            softlib.load().port(name, up=True)
        engine.close()
    assert not devices.engines
    assert engine.closed


def groups_in_use(devices: Devices[engines.Engine]) -> list[LinkGroup]:
    """Links with connections."""
    return [group for engine in devices.engines for group in engine.all_groups if group.members]


def device_in_use(devices: Devices[engines.Engine]) -> str:
    """The device on which all connections are."""
    (name,) = {group.engine.backend.name for group in groups_in_use(devices)}
    return name


def fail(devices: Devices[engines.Engine], way: str) -> None:
    """The links in use fail in one of the ``WAYS``."""
    groups = groups_in_use(devices)
    library = softlib.load()
    for name in sorted({group.engine.backend.name for group in groups}):
        if way == "port":
            library.port(name, up=False)
        elif way == "device":
            library.kill(name)
    if way == "one end":
        groups = [random.choice(groups)]
    for group in groups:
        if way == "qp":
            # Either end notices it with the next request that it posts.
            group.link.parts.qp.to_error()
            group.link.suspect()
        elif way in ("link", "one end"):
            group.link.queue_pair.break_link(LinkError("broken by the test", group.peer))


async def pair(
    listener: aiordma.RdmaListener, **settings: Any
) -> tuple[aiordma.RdmaStream, aiordma.RdmaStream]:
    """A connected pair on RDMA, at both ends in use."""
    config = tuned(**{**TWO, **settings})
    one = await aiordma.connect(LOCAL, listener.port, config=config, mode="rdma")
    other = await listener.accept()
    await one.send(b"?")
    assert await other.receive() == b"?"
    await other.send(b"!")
    assert await one.receive() == b"!"
    return one, other
