"""Connection classes for redis-py and valkey-py, to a model of the server; a real one is in tests/system."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from tests.processes import PATIENCE
from tests.roles import LOCAL
from tests.world import needs_pyverbs

from .model import Gone

if TYPE_CHECKING:
    from .model import ModelServer

pytestmark = pytest.mark.anyio


@pytest.fixture(
    params=[("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"]
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=["redis", "valkey"])
def library(request: pytest.FixtureRequest, blockbuster: Any) -> Any:
    """redis-py reads its own version from a file when it makes a connection."""
    for function in blockbuster.functions.values():
        function.can_block_in("redis/utils.py", "get_lib_version")
    pytest.importorskip(request.param, reason=f"the extra aiordma[{request.param}] is not installed")
    return importlib.import_module(f"aiordma.integrations.{request.param}")


def commands_in(data: bytearray) -> list[bytes]:
    """Takes whole commands from what has arrived; the first word of each."""
    found: list[bytes] = []
    while b"\r\n" in data:
        at = data.index(b"\r\n") + 2
        words = []
        for _ in range(int(data[1 : at - 2])):
            end = data.find(b"\r\n", at)
            size = int(data[at + 1 : end]) if end > 0 else 0
            if end < 0 or len(data) < end + 2 + size + 2:
                return found
            words.append(bytes(data[end + 2 : end + 2 + size]))
            at = end + 2 + size + 2
        del data[:at]
        found.append(words[0].upper())
    return found


async def answer(server: ModelServer) -> None:
    """One client's commands: an error, but for PING, and for GET, which gets 10,000 bytes."""
    await server.accept()
    data = bytearray()
    try:
        while True:
            data += await server.receive()
            for word in commands_in(data):
                answers = {b"PING": b"+PONG\r\n", b"GET": b"$10000\r\n" + b"v" * 10_000 + b"\r\n"}
                await server.send(answers.get(word, b"-ERR unknown\r\n"))
    except Gone:
        server.forget()


@needs_pyverbs
async def test_commands(server: ModelServer, library: Any) -> None:
    serving = asyncio.create_task(answer(server))
    client = library.from_url(
        f"valkey+rdma://{LOCAL}:{server.port}", protocol=2, db=0, buffer_bytes="4096", max_connections=1
    )
    with anyio.fail_after(PATIENCE):
        assert await client.ping()
        assert await client.get("key") == b"v" * 10_000
        (connection,) = client.connection_pool._available_connections
        writer = connection._writer
        assert writer.get_extra_info("aiordma.path") == "rdma"
        assert writer.get_extra_info("peername") == (LOCAL, server.port)
        counts = writer.get_extra_info("aiordma.stream").statistics()
        assert counts.bytes_received > 10_000
        assert counts.registrations_sent > 2
        await client.aclose()
        await serving


async def test_nothing_listens(library: Any) -> None:
    client = library.from_url(f"valkey+rdma://{LOCAL}:1", retry=None)
    with pytest.raises(Exception, match="nothing listens there by RDMA") as caught:
        await client.ping()
    assert type(caught.value).__name__ == "ConnectionError"
    await client.aclose()


@pytest.mark.parametrize("url", ["redis://localhost", "valkeys+rdma://localhost", "localhost:6379"])
async def test_other_urls(library: Any, url: str) -> None:
    with pytest.raises(ValueError, match=r"must begin with rdma:// .* or valkey\+rdma://"):
        library.from_url(url)
