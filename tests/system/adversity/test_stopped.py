"""A peer whose process is stopped for a while (in a debugger, say): streams wait for it, as on TCP."""

from __future__ import annotations

import logging
import os
import signal
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma.links import engine as engines
from tests.health import until
from tests.processes import PATIENCE, process
from tests.roles import LOCAL
from tests.tuned import tuned
from tests.world import DEVICE

if TYPE_CHECKING:
    from tests.processes import Process

pytestmark = pytest.mark.anyio

ECHO = "tests.roles:echo_server"
#: Times for a peer that runs, however slowly.
LONG: dict[str, Any] = {"keepalive_ms": 600_000, "failover_timeout_ms": 600_000}
#: Once it is stopped, the link is lost and the failover's time is over long before the peer goes on.
SHORT = {"keepalive_ms": 100, "failover_timeout_ms": 300}
PROBE_MS = 200


async def stopped(server: Process, stream: aiordma.RdmaStream) -> None:
    """Stop the peer in an echo."""
    await stream.send(b"before")
    assert await stream.receive() == b"before"
    os.kill(server.pid, signal.SIGSTOP)
    aiordma.change_settings(**SHORT)


async def test_a_stream_waits_for_a_stopped_peer(caplog: pytest.LogCaptureFixture) -> None:
    await engines.current(tuned(device=DEVICE, keepalive_timeout_ms=PROBE_MS, **LONG))
    with process(ECHO) as server, caplog.at_level(logging.WARNING, "aiordma.link"):
        port = await server.heard()
        async with await aiordma.connect(LOCAL, port, mode="rdma") as stream:
            await stopped(server, stream)
            try:
                await until(lambda: "its host answers on TCP" in caplog.text, lambda: caplog.text)
                data = os.urandom(100_000)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(stream.send, data)
                    os.kill(server.pid, signal.SIGCONT)
                    got = b""
                    with anyio.fail_after(PATIENCE):
                        while len(got) < len(data):
                            got += await stream.receive()
            finally:
                os.kill(server.pid, signal.SIGCONT)
            assert got == data
            assert stream.path == "tcp"


async def test_the_error_tells_a_stopped_process_from_a_dead_host() -> None:
    config = tuned(device=DEVICE, keepalive_timeout_ms=PROBE_MS, stopped_peer_ms=600, **LONG)
    await engines.current(config)
    with process(ECHO) as server:
        port = await server.heard()
        async with await aiordma.connect(LOCAL, port, mode="rdma") as stream:
            await stopped(server, stream)
            try:
                with anyio.fail_after(PATIENCE), pytest.raises(anyio.BrokenResourceError) as caught:
                    await stream.receive()
            finally:
                os.kill(server.pid, signal.SIGCONT)
        text = str(caught.value.__cause__)
        assert "no answer to the keepalive probe" in text
        assert "the peer's process has not run for" in text
        assert "its host answers on TCP" in text
        assert "AIORDMA_STOPPED_PEER_MS" in text
