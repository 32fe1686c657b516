"""A process that may have few file descriptors: streams that run go on, and new ones say what is missing."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
import pytest

import aiordma
from tests.health import check_echo, endpoint_begun
from tests.processes import FULL_PATIENCE, process
from tests.roles import LOCAL, echo
from tests.tuned import tuned

if TYPE_CHECKING:
    from aiordma.config import Config
    from tests.program import Control

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

#: Connects as often as it can with that many descriptors, then has each stream echo. With `first`, one stream
#: is there before they are few: a link that still has to be made competes for them with connections.
CLIENT = """
import asyncio, json, resource, sys

async def echo(reader, writer):
    writer.write(bytes(5000))
    await writer.drain()
    return len(await reader.readexactly(5000)) == 5000

async def main(port, limit, count, first):
    import aiordma
    streams, errors = [], []
    if first:
        streams.append(await aiordma.open_connection("127.0.0.1", port))
        await echo(*streams[0])
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    for _ in range(count - first):
        try:
            reader, writer = await aiordma.open_connection("127.0.0.1", port)
        except OSError as error:
            errors.append(error.errno)
            continue
        streams.append((reader, writer))
    echoed = 0
    for _ in range(3):
        for reader, writer in streams:
            echoed += await echo(reader, writer)
    paths = [(writer.get_extra_info("aiordma.path"), str(writer.get_extra_info("aiordma.fallback_reason")))
             for reader, writer in streams]
    print(json.dumps({"paths": paths, "errors": errors, "echoed": echoed}))

asyncio.run(main(*map(int, sys.argv[1:])))
"""


async def with_descriptors(limit: int, count: int, *, first: bool) -> Any:
    async def echo(stream: aiordma.RdmaStream) -> None:
        async with stream:
            with contextlib.suppress(anyio.BrokenResourceError):  # the client ends without a goodbye
                async for part in stream:
                    await stream.send(part)

    async with await aiordma.listen("127.0.0.1", 0) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        command = [sys.executable, "-c", CLIENT, str(port), str(limit), str(count), str(int(first))]
        with anyio.fail_after(FULL_PATIENCE):
            done = await anyio.run_process(command, stderr=subprocess.PIPE, check=False)
        assert done.returncode == 0, done.stderr.decode()
        tasks.cancel_scope.cancel()
        return json.loads(done.stdout)


@pytest.mark.parametrize("limit", [32, 40, 48])
async def test_streams_go_on_when_descriptors_run_out(limit: int) -> None:
    seen = await with_descriptors(limit, 64, first=True)
    assert seen["errors"], "the limit was never reached"
    assert set(seen["errors"]) == {24}
    assert seen["echoed"] == 3 * len(seen["paths"]) > 0
    assert seen["paths"][0][0] == "rdma", seen["paths"]


@pytest.mark.parametrize("limit", [16, 20, 24, 28])
async def test_the_reason_for_tcp_names_the_descriptors(limit: int) -> None:
    seen = await with_descriptors(limit, 2, first=False)
    reasons = [reason for path, reason in seen["paths"] if path == "tcp"]
    assert seen["echoed"] == 3 * len(seen["paths"])
    for reason in reasons:
        assert f"no file descriptors left (limit {limit}); raise it with ulimit -n" in reason
        assert "out of memory" not in reason


#: From too few descriptors to enough.
ENOUGH = range(3, 13)


def patience(more: int) -> Config:
    """Where descriptors lack, a link may not come; where they do not, it does."""
    return tuned() if more == ENOUGH[-1] else tuned(link_timeout_ms=1000)


async def limited_server(control: Control, more: int) -> None:
    """An echo server that may open so many descriptors more from the moment at which it listens."""
    async with (
        await aiordma.listen(LOCAL, 0, config=patience(more)) as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, echo)
        await endpoint_begun()
        limit = max(map(int, os.listdir("/proc/self/fd"))) + more
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        control.say(listener.port)
        await control.heard_all()
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("anyio_backend", [("asyncio", {})])
async def test_a_server_without_descriptors_gives_tcp(anyio_backend: object) -> None:
    """Whatever step of the first contact lacks them: the client has a connection, and a reason if on TCP."""
    paths = []
    for more in ENOUGH:
        with process("tests.system.adversity.test_descriptors:limited_server", more=more) as server:
            port = await server.heard()
            with anyio.fail_after(FULL_PATIENCE):
                async with await aiordma.connect(LOCAL, port, config=patience(more)) as stream:
                    await check_echo(stream)
                    paths.append(stream.path)
                    assert stream.path == "rdma" or stream.fallback_reason is not None
    assert paths[0] == "tcp", paths
    assert paths[-1] == "rdma", paths
