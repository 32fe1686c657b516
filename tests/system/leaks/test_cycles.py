"""A closed connection is freed at once, and not when the garbage collector comes: ten thousand that a busy
hour left would stay for hours on a loop that is idle then, since a collection begins with new objects."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator  # for the annotations of methods
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest

import aiordma
from aiordma import rpc
from aiordma.compat.server import RdmaServer
from tests.health import until
from tests.roles import LOCAL
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    Work = Callable[[], Awaitable[None]]

pytestmark = pytest.mark.anyio

CONFIG = aiordma.Config(device=DEVICE)


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def connections() -> Counter[str]:
    """Objects that there is one of for each connection, or more, by class."""
    kinds = (type(each) for each in gc.get_objects())
    names = Counter(f"{kind.__module__}.{kind.__name__}" for kind in kinds)
    told = ("pipes.", "links.member", "streams.", "datagrams.", "rpc.", "proto.cdc", "compat.transport")
    return Counter({name: names[name] for name in names if any(f"aiordma.{each}" in name for each in told)})


@asynccontextmanager
async def streams(**options: str) -> AsyncIterator[Work]:
    async def echo(stream: aiordma.RdmaStream) -> None:
        async for data in stream:
            await stream.send(data)

    async def work() -> None:
        async with aiordma.connect(LOCAL, listener.port, config=CONFIG, **options) as stream:  # type: ignore[arg-type]
            await stream.send(b"x")
            assert await stream.receive() == b"x"

    async with await aiordma.listen(LOCAL, 0, config=CONFIG) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        yield work
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def datagrams() -> AsyncIterator[Work]:
    async def echo(connection: aiordma.DatagramConnection) -> None:
        async for message in connection:
            await connection.send(message)

    async def work() -> None:
        async with await aiordma.connect_datagram(LOCAL, listener.port, config=CONFIG) as connection:
            await connection.send(b"x")
            assert await connection.receive() == b"x"

    async with (
        await aiordma.listen_datagram(LOCAL, 0, config=CONFIG) as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, echo)
        yield work
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def calls() -> AsyncIterator[Work]:
    service = rpc.Service("leaks")

    @service.method
    async def items(given: AsyncIterator[int]) -> AsyncIterator[int]:
        async for item in given:
            yield item + 1

    @service.method
    def double(number: int) -> int:
        return 2 * number

    async def work() -> None:
        async with rpc.connect(LOCAL, server.port, config=CONFIG) as client:
            assert await client.call("leaks.double", 4, returns=int) == 8
            async with client.stream("leaks.items", returns=int) as stream:
                await stream.send(1)
                assert await stream.receive() == 2
                await stream.end()
                with pytest.raises(anyio.EndOfStream):
                    await stream.receive()

    async with rpc.serve(service, LOCAL, config=CONFIG) as server:
        yield work


@asynccontextmanager
async def transports() -> AsyncIterator[Work]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(1))
        writer.close()
        await writer.wait_closed()

    class Keeping(asyncio.Protocol):
        """Most protocols keep their transport."""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport
            transport.write(b"x")  # type: ignore[attr-defined]
            self.lost = asyncio.get_running_loop().create_future()

        def data_received(self, data: bytes) -> None:
            assert data == b"x"

        def connection_lost(self, exc: Exception | None) -> None:
            self.lost.set_result(exc)

    async def work() -> None:
        reader, writer = await aiordma.open_connection(LOCAL, port, config=CONFIG)
        writer.write(b"x")
        assert await reader.read() == b"x"
        writer.close()
        await writer.wait_closed()
        _, protocol = await aiordma.create_connection(Keeping, LOCAL, port, config=CONFIG)
        assert isinstance(protocol, Keeping)
        assert await protocol.lost is None

    async with await aiordma.start_server(echo, LOCAL, 0, config=CONFIG) as server:
        assert isinstance(server, asyncio.Server | RdmaServer)
        port = server.sockets[0].getsockname()[1]
        yield work


KINDS = {
    "streams": streams,
    "streams on TCP": lambda: streams(mode="tcp"),
    "datagrams": datagrams,
    "calls": calls,
}


async def freed(kind: Callable[[], object], rounds: int = 20) -> None:
    async with kind() as work:  # type: ignore[attr-defined]
        for _ in range(3):
            await work()
        before = connections()

        def more() -> Counter[str]:
            return connections() - before

        for _ in range(rounds):
            await work()
        await until(lambda: not any(count >= rounds / 2 for count in more().values()), more)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("no_collection")
async def test_closed_connections_are_freed(kind: str) -> None:
    await freed(KINDS[kind])


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(
    "anyio_backend", ["asyncio", ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"]
)
async def test_lost_transports_are_freed(anyio_backend: str) -> None:
    await freed(transports)
