"""A server whose connections somebody else counts, by the names that asyncio's servers have for it."""

from __future__ import annotations

import asyncio

import pytest

import aiordma
from tests.roles import LOCAL

pytestmark = pytest.mark.anyio


async def test_wait_closed_waits_for_connections_that_are_pretended() -> None:
    """As CPython's tests of its servers pretend them."""
    server = await aiordma.create_server(asyncio.Protocol, LOCAL, 0)
    waiting = asyncio.ensure_future(server.wait_closed())
    await asyncio.sleep(0)
    server._attach()  # type: ignore[attr-defined]
    server._attach(object())  # type: ignore[attr-defined]  # with a transport, since Python 3.13
    server.close()
    await asyncio.sleep(0)
    assert not waiting.done()
    server._detach()  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    assert not waiting.done()
    server._detach(object())  # type: ignore[attr-defined]
    await waiting
