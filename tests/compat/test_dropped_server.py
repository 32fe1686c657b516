"""A server that the program has dropped without closing it goes when asyncio's own does, with its port."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from aiordma.compat import connection
from aiordma.config import Config
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = Config(device=DEVICE)
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.read(1000))
    writer.close()


async def start(kind: str, **options: Any) -> Any:
    if kind == "asyncio's":
        return await asyncio.start_server(echo, "127.0.0.1", 0, **options)
    return await connection.start_server(echo, "127.0.0.1", 0, config=CONFIG, **options)


async def drop(kind: str, clients: int, **options: Any) -> int:
    """The inode of its socket. (Nothing else is left.)"""
    server = await start(kind, **options)
    inode, port = os.fstat(server.sockets[0].fileno()).st_ino, server.sockets[0].getsockname()[1]
    for _ in range(clients):
        reader, writer = await connection.open_connection("127.0.0.1", port, config=CONFIG)
        writer.write(b"hello")
        assert await reader.read() == b"hello"
        writer.close()
        await writer.wait_closed()
    return inode


def is_open(inode: int) -> bool:
    """Whether this process has a descriptor of this socket. (Its port may be another program's by now.)"""
    with os.scandir("/proc/self/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if os.stat(entry.path).st_ino == inode:
                    return True
    return False


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize(
    ("kind", "loop"), [("asyncio's", "asyncio"), ("ours", "asyncio"), ("ours", "uvloop")]
)
def test_one_that_does_not_serve_yet(kind: str, loop: str) -> None:
    async def main() -> None:
        assert not is_open(await drop(kind, 0, start_serving=False))

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", ["asyncio's", "ours"])
@pytest.mark.parametrize("clients", [0, 1, 3])
def test_one_that_serves_goes_with_its_loop(clients: int, kind: str, loop: str) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        inode = runner.run(drop(kind, clients))
        assert is_open(inode)
    assert not is_open(inode)


def test_one_that_is_dropped_says_so() -> None:
    async def main() -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            await drop("ours", 0, start_serving=False)
        assert len(caught) == 1
        assert "unclosed <socket" in str(caught[0].message)

    asyncio.run(main())
