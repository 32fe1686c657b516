"""A program that has nothing left to answer tools with: they are turned away, and later ones are not."""

from __future__ import annotations

import socket
import sys

import pytest

from aiordma import wake
from tests.health import endpoint_begun, until
from tests.memory.pairs import pair

pytestmark = pytest.mark.anyio

SESSION = "aiordma.admin.session"


async def test_what_answers_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no descriptor for its file, for example."""
    async with pair("rdma"):
        await endpoint_begun()
        endpoint = wake.current().locals["aiordma.admin.endpoint"].value
        mine, theirs = socket.socketpair()  # the endpoint owns its end
        theirs.setblocking(False)
        with monkeypatch.context() as patch, mine:
            patch.setitem(sys.modules, SESSION, None)
            endpoint.take(theirs)
            await until(lambda: theirs.fileno() < 0)
        mine, theirs = socket.socketpair()
        theirs.setblocking(False)
        with mine:
            endpoint.take(theirs)
            await until(lambda: endpoint._sessions)
        await until(lambda: theirs.fileno() < 0)
