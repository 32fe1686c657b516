"""A program that looks for blocking calls in its event loop, as aiohttp's tests do, finds none of ours.

What the loop of a program imports and reads with its first connection was imported and read long before in
the process of these tests, so the program is one of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.world import DEVICE

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import asyncio, sys
from blockbuster import blockbuster_ctx

async def main():
    if "code" in sys.argv:
        from aiordma import open_connection, start_server
    else:
        from asyncio import open_connection, start_server

    async def answer(reader, writer):
        writer.write(await reader.readexactly(5))
        writer.close()

    server = await start_server(answer, "127.0.0.1", 0)
    reader, writer = await open_connection(*server.sockets[0].getsockname())
    writer.write(b"hello")
    said = await reader.read(), writer.get_extra_info("aiordma.path")
    writer.close()
    server.close()
    return said

if "uvloop" in sys.argv:
    import uvloop
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
else:
    runner = asyncio.Runner()
with blockbuster_ctx(), runner:
    print(*runner.run(main()))
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("how", ["run", "code"])
def test_the_first_connection_reads_no_file_that_could_block(tmp_path: Path, how: str, loop: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = ["-m", "aiordma", "run", str(program)] if how == "run" else [str(program)]
    environ = {**os.environ, "AIORDMA_DEVICE": DEVICE, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, *command, how, loop],
        env=environ, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("b'hello' rdma\n", 0), done.stderr
