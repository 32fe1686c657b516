"""Processes that may lock no memory or make no large files, or that find /dev/shm full, have connections."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import anyio
import pytest

import aiordma
from tests.health import check_echo
from tests.processes import FULL_PATIENCE
from tests.roles import LOCAL, echo

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CLIENT = """
import asyncio, json, sys

async def main(port):
    import aiordma
    reader, writer = await aiordma.open_connection("127.0.0.1", port)
    for size in (5, 400_000):
        writer.write(bytes(size))
        await writer.drain()
        assert await reader.readexactly(size) == bytes(size)
    print(json.dumps([writer.get_extra_info("aiordma.path"),
                      str(writer.get_extra_info("aiordma.fallback_reason"))]))
    writer.close()
    await writer.wait_closed()

asyncio.run(main(int(sys.argv[1])))
"""

FILL = "mount -t tmpfs -o size=4k,nr_inodes=2 none /dev/shm && { head -c 9000 /dev/zero >/dev/shm/x; "
WAYS = {
    "no locked memory": ["prlimit", "--memlock=0"],
    "no files above 64 KiB": ["prlimit", "--fsize=65536"],
    "/dev/shm is full": ["unshare", "-m", "sh", "-c", FILL + 'exec "$@"; }', "sh"],
}
#: What the device needs is in memfds, which the size of files limits and that of /dev/shm does not.
PATHS = {"no locked memory": "rdma", "no files above 64 KiB": "tcp", "/dev/shm is full": "rdma"}


CROWD = """
import json, resource, sys
from pathlib import Path

import anyio

import aiordma
from tests.health import check_echo

CONFIG = aiordma.Config(ring_bytes=1 << 22, max_ring_bytes=1 << 22)

async def main(port):
    streams = [await aiordma.connect("127.0.0.1", port, mode="rdma", config=CONFIG)]
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (160 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    while streams[-1].path == "rdma" and len(streams) < 100:
        streams.append(await aiordma.connect("127.0.0.1", port, config=CONFIG))
    for stream in (streams[0], streams[-1]):
        await check_echo(stream, bytes(range(256)) * 4000)
    print(json.dumps([streams[0].path, streams[-1].path, str(streams[-1].fallback_reason)]))
    bytearray(24 << 20)
    for stream in streams:
        await stream.aclose()

anyio.run(main, int(sys.argv[1]), backend=sys.argv[2])
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("anyio_backend", [("asyncio", {})])
async def test_little_address_space(backend: str, anyio_backend: object) -> None:
    """Rings leave some of it to streams on TCP, and to the program."""
    async with await aiordma.listen(LOCAL) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        command = [sys.executable, "-c", CROWD, str(listener.port), backend]
        with anyio.fail_after(FULL_PATIENCE):
            done = await anyio.run_process(command, stderr=subprocess.PIPE, check=False)
        assert done.returncode == 0, done.stderr.decode()
        first, last, reason = json.loads(done.stdout)
        assert (first, last) == ("rdma", "tcp"), (reason, done.stderr.decode())
        assert "ulimit -v" in reason
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("anyio_backend", [("asyncio", {})])
@pytest.mark.parametrize("way", WAYS)
async def test_the_clients_process(way: str, anyio_backend: object) -> None:
    if way == "/dev/shm is full" and os.geteuid():
        pytest.skip("needs root, for a mount namespace")
    assert shutil.which(WAYS[way][0])
    # As if the machine had just started: XDG_RUNTIME_DIR would be taken instead of /dev/shm.
    environ = {name: value for name, value in os.environ.items() if name != "XDG_RUNTIME_DIR"}
    async with await aiordma.listen(LOCAL) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        command = [*WAYS[way], sys.executable, "-c", CLIENT, str(listener.port)]
        with anyio.fail_after(FULL_PATIENCE):
            done = await anyio.run_process(command, stderr=subprocess.PIPE, check=False, env=environ)
        assert done.returncode == 0, done.stderr.decode()
        path, reason = json.loads(done.stdout)
        assert path == PATHS[way], (path, reason, done.stderr.decode())
        if path == "tcp":
            assert "memory" in reason or "File too large" in reason, reason
        async with await aiordma.connect(LOCAL, listener.port, mode="rdma") as stream:
            await check_echo(stream)
        tasks.cancel_scope.cancel()
