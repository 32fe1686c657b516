"""The device refuses a request that is posted for a blocked loop, and the program sends on meanwhile."""

from __future__ import annotations

import ctypes
from typing import Any

import anyio
import pytest

from aiordma.valkey.connection import Connection
from tests.health import until
from tests.links.failover.refusing import block, hurried, refusing
from tests.processes import PATIENCE
from tests.world import DEVICE, needs_pyverbs

from .conftest import connected
from .model import ModelServer

pytestmark = [
    pytest.mark.anyio,
    needs_pyverbs,
    pytest.mark.skipif(DEVICE != "soft", reason="the stand-in for its operations is the software device's"),
]


async def test_nothing_passes_what_was_refused(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server counts bytes, and would take these for those that were refused."""
    make, made = Connection._make, []

    def make_known(connection: Connection, library: ctypes.CDLL) -> None:
        make(connection, library)
        made.append(connection)

    monkeypatch.setattr(Connection, "_make", make_known)
    stream = await connected(server)
    async with stream:
        pipe: Any = stream._pipe
        with hurried(), refusing(made[0].qp.pointer, late=True) as counts, anyio.fail_after(PATIENCE):
            while not counts.refused:
                await anyio.lowlevel.checkpoint()
                assert pipe.try_send(b"refused") == 7  # what is short waits for the end of the turn
                block(counts)
            pipe.try_send(bytes(3000))
            await until(lambda: pipe.error is not None)
            assert counts.taken_behind == 0
