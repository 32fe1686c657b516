"""A program's tests replace builtins, as `mock.patch("builtins.open")` does: connections work meanwhile."""

from __future__ import annotations

import subprocess
import sys

from tests.world import DEVICE

PROGRAM = f"""
import asyncio, builtins
from aiordma import Config, open_connection, start_server

def no(*arguments, **options):
    raise AssertionError(f"open{{arguments}}")

async def main():
    config = Config(device={DEVICE!r})
    used, builtins.open = builtins.open, no
    try:
        async def answer(reader, writer):
            writer.write(await reader.readexactly(5))
            writer.close()

        server = await start_server(answer, "127.0.0.1", 0, config=config)
        reader, writer = await open_connection(*server.sockets[0].getsockname(), config=config)
        writer.write(b"hello")
        said = await reader.read(), writer.get_extra_info("aiordma.path")
        writer.close()
        server.close()
    finally:
        builtins.open = used
    print(*said)

asyncio.run(main())
"""


def test_open_is_replaced() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.returncode) == ("b'hello' rdma\n", 0), done.stderr
