"""The memory of asyncio's reads comes from the kernel and goes back each time, unless the heap keeps it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from aiordma import borrowed

PROGRAM = """
import asyncio, resource
import aiordma

ROUNDS = 1000

async def echo(reader, writer):
    while data := await reader.read(100):
        writer.write(data)
    writer.close()

async def main():
    server = await aiordma.start_server(echo, "127.0.0.1", 0, mode="tcp")
    port = server.sockets[0].getsockname()[1]
    reader, writer = await aiordma.open_connection("127.0.0.1", port, mode="tcp")
    for rounds in (50, ROUNDS):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(rounds):
            writer.write(b"x" * 64)
            await reader.readexactly(64)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    writer.close()
    server.close()

asyncio.run(main())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is the GNU C library's heap that does it")
@pytest.mark.parametrize(("padding", "private"), [(0, "auto"), (700, "auto"), (1500, "off"), (3000, "auto")])
def test_small_messages_cost_no_page_faults_on_tcp(padding: int, private: str) -> None:
    """It was two for each message at each end, 4,000 here, with three system calls; or none at all. That
    depends on what the program has freed before, and so even on the length of its environment."""
    environment = {**os.environ, "PADDING": "x" * padding, borrowed.VARIABLE: private}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) < 500
