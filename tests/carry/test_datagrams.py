"""Connected datagrams work on the rings themselves: a broken link is an error to both ends, never silence."""

from __future__ import annotations

import anyio
import pytest

import aiordma
from aiordma.carry import switch_engine
from tests.adversity.health import nothing_left
from tests.integration.roles import LOCAL

from .breaking import take_off

pytestmark = pytest.mark.anyio


async def test_they_end_with_their_link() -> None:
    async with nothing_left() as engine, await aiordma.listen_datagram(LOCAL, mode="rdma") as listener:
        one = await aiordma.connect_datagram(LOCAL, listener.port, mode="rdma")
        other = await listener.accept()
        await one.send(b"before")
        assert await other.receive() == b"before"
        assert switch_engine(engine) == 0
        take_off(engine, "link")
        with anyio.fail_after(10):
            for end in (one, other):
                with pytest.raises(anyio.BrokenResourceError):
                    await end.receive()
                await end.aclose()
