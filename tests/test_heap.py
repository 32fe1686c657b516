"""Pages that a program pays for when it has messages: as many as its memory has, not again for each."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import textwrap

import pytest

#: Four messages of 1 MiB at a time, as sixteen connections of sanic's or asyncua's have them, 50 times.
_PROGRAM = """
import asyncio, resource
from aiordma.compat.connection import create_connection, create_server
from aiordma.config import Config

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

async def main():
    config = Config.from_env(mode={mode!r})
    server = await create_server(asyncio.Protocol, "127.0.0.1", 0, config=config)
    port = server.sockets[0].getsockname()[1]
    transport, _ = await create_connection(asyncio.Protocol, "127.0.0.1", port, config=config)
    print(transport.get_extra_info("aiordma.path"))
    before = faults()
    for _ in range(50):
        messages = [b"x" * (1 << 20) for _ in range(4)]
        del messages
    print(faults() - before)
    transport.abort()
    server.close()

asyncio.run(main())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what glibc does with freed memory")
@pytest.mark.parametrize("mode", ["rdma", "tcp"])
def test_messages_take_the_memory_of_those_before_them(mode: str) -> None:
    environ = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    environ.pop("GLIBC_TUNABLES", None)
    program = textwrap.dedent(_PROGRAM).format(mode=mode)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True
    )
    path, faults = done.stdout.split()
    assert path == mode
    # 1,024 pages of 4 KiB at first; each time, they would be 51,200.
    assert int(faults) < 5_000
