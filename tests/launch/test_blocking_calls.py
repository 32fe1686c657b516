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

#: A line of the file of plain servers: one that expires in the year 2286, and is of no host.
_LINE = "9999999999 host.invalid 1\n"

#: Beside its result, prints the files that its event loop's thread has opened, other than to import a module,
#: and that the kernel does not keep in memory.
SURFACES = """
import os, sys, threading
import anyio
import aiordma

opened = []
watching = False

def is_import(frame):
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False

def hook(event, args):
    if watching and event in ("open", "os.listdir", "os.scandir") and not is_import(sys._getframe(1)):
        path = str(args[0])
        if threading.current_thread() is threading.main_thread() and not path.startswith(("/proc/", "/sys/")):
            opened.append(path)

sys.addaudithook(hook)

async def stream(tasks, mode):
    listener = await aiordma.listen("127.0.0.1")

    async def echo(stream):
        async with stream:
            await stream.send(await stream.receive())

    tasks.start_soon(listener.serve, echo)
    async with await aiordma.connect("127.0.0.1", listener.port, mode=mode) as stream:
        await stream.send(b"hello")
        assert await stream.receive() == b"hello"
        return stream.path

async def datagrams():
    async with await aiordma.listen_datagram("127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.accept)
        async with await aiordma.connect_datagram("127.0.0.1", listener.port) as connection:
            await connection.send(b"hello")
        tasks.cancel_scope.cancel()

async def main():
    global watching
    watching = True
    async with anyio.create_task_group() as tasks:
        paths = [await stream(tasks, "auto"), await stream(tasks, "tcp")]
        await datagrams()
        tasks.cancel_scope.cancel()
    watching = False
    print(*paths, opened)

anyio.run(main, backend=sys.argv[1])
"""

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
    memory = tmp_path / "aiordma" / "plain-peers"
    memory.parent.mkdir(mode=0o700)
    memory.write_text(_LINE)
    memory.chmod(0o600)
    command = ["-m", "aiordma", "run", str(program)] if how == "run" else [str(program)]
    environ = {**os.environ, "AIORDMA_DEVICE": DEVICE, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, *command, how, loop],
        env=environ, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("b'hello' rdma\n", 0), done.stderr


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_no_file_of_a_disk_is_opened_in_the_event_loop(backend: str) -> None:
    """By Python, on aiordma's own surfaces: blockbuster knows asyncio only."""
    done = subprocess.run(
        [sys.executable, "-c", SURFACES, backend],
        env={**os.environ, "AIORDMA_DEVICE": DEVICE}, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("rdma tcp []\n", 0), done.stderr
