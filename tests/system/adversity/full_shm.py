"""A program that uses every part of aiordma once, where /dev/shm is full or becomes so meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path

import aiordma
from aiordma import memory, rpc
from tests.admin.looking import loops_of
from tests.roles import LOCAL

_SHM = Path("/dev/shm")


def fill(folder: Path = _SHM) -> None:
    """Leave no byte and no page of it."""
    with open(folder / "filled", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    assert os.statvfs(folder).f_bfree == 0


_service = rpc.Service("t")


@_service.method
async def double(number: int) -> int:
    """Twice the number."""
    return 2 * number


async def echo(peer: aiordma.RdmaStream) -> None:
    """A handler that sends back what comes."""
    async with peer:
        async for data in peer:
            await peer.send(data)


async def stream(listener: aiordma.RdmaListener) -> str:
    """Bytes there and back; the path that they took."""
    async with await aiordma.connect(LOCAL, listener.port) as one:
        data = os.urandom(300_000)
        sending = asyncio.create_task(one.send(data))
        found = b""
        while len(found) < len(data):
            found += await one.receive()
        await sending
        assert found == data
        return one.path


async def call() -> None:
    """One call."""
    async with rpc.serve(_service, LOCAL) as server, rpc.connect(LOCAL, server.port) as client:
        assert await client.call("t.double", 21, returns=int) == 42


async def region() -> None:
    """One write to memory of a peer."""
    async with memory.serve(LOCAL) as server, await memory.alloc(1 << 20) as region:
        async with await memory.connect(LOCAL, server.port) as peer:
            remote = await peer.open(region.descriptor())
            await remote[:5].write(b"bytes")
        assert bytes(region[:5].view) == b"bytes"


def _stat() -> str:
    command = [sys.executable, "-m", "aiordma", "stat", "--pid", str(os.getpid())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr
    return "seen" if not done.returncode else "not seen"


async def main(when: str) -> None:
    """Prints the path of a stream, and whether ``aiordma stat`` sees this process."""
    if when == "before":
        fill()
    async with await aiordma.listen(LOCAL) as listener:
        serving = asyncio.create_task(listener.serve(echo))
        if when == "meanwhile":
            await asyncio.to_thread(loops_of, os.getpid())
            fill()
        path = await stream(listener)
        await call()
        await region()
        await asyncio.sleep(1.1)  # the page is written once a second
        print(path, await asyncio.to_thread(_stat))
        serving.cancel()
        await asyncio.wait([serving])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
