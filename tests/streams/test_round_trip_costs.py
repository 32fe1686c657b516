"""What a round trip of 64 bytes costs in Python on each surface, counted and not timed."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma import memory, rpc
from aiordma.channels import channel
from aiordma.config import Config
from tests.loops import LOOPS
from tests.pipes.channel_ends import End
from tests.roles import LOCAL
from tests.streams.pairs import tls_contexts
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from types import FrameType

    Trip = Callable[[], Awaitable[object]]

pytestmark = pytest.mark.anyio

_PACKAGE = str(Path(aiordma.__file__).parent)
_TRIPS = 100
#: Calls of functions of this package that are written in Python, of both ends, for one round trip of 64 B,
#: on asyncio's loops and on trio: a little more than they were, as the order of tasks decides how often one
#: waits. A coroutine that goes on after a wait counts as called again. The writer's were 35: twelve asked
#: whether a backlog is empty, moved nothing, or slept in a coroutine of their own, which was 13,800 of 76,600
#: instructions.
CALLS = {
    "stream": (31, 95),
    "transport": (18, None),
    "writer": (23, None),
    "trio sockets": (None, 102),
    "datagrams": (6, 84),
    "channels": (3, 18),
    "calls": (10, 30),
    "memory": (14, 22),
    "tls": (66, 118),
    "tcp": (33, 95),
}
_BYTES = bytes(64)


@contextlib.asynccontextmanager
async def _stream(config: Config, mode: str, tls: bool) -> AsyncIterator[Trip]:
    client_options: dict[str, Any] = {"config": config, "mode": mode}
    server_options: dict[str, Any] = {"config": config}
    if tls:
        client_options["ssl"], server_options["ssl"] = tls_contexts()
    async with await aiordma.listen(LOCAL, **server_options) as listener, anyio.create_task_group() as tasks:

        async def echo(stream: aiordma.RdmaStream) -> None:
            async with stream:
                async for data in stream:
                    await stream.send(data)

        tasks.start_soon(listener.serve, echo)
        async with await aiordma.connect(LOCAL, listener.port, **client_options) as stream:

            async def trip() -> None:
                await stream.send(_BYTES)
                await stream.receive_exactly(64)

            yield trip
        tasks.cancel_scope.cancel()


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class _Asks(_Echo):
    came: asyncio.Future[None]

    def data_received(self, data: bytes) -> None:
        self.came.set_result(None)


@contextlib.asynccontextmanager
async def _transport(config: Config) -> AsyncIterator[Trip]:
    server: Any = await aiordma.create_server(_Echo, LOCAL, 0, config=config)
    port = server.sockets[0].getsockname()[1]
    asks = _Asks()
    transport, _ = await aiordma.create_connection(lambda: asks, LOCAL, port, config=config)
    assert transport.get_extra_info("aiordma.path") == "rdma"
    loop = asyncio.get_running_loop()

    async def trip() -> None:
        asks.came = loop.create_future()
        transport.write(_BYTES)
        await asks.came

    yield trip
    transport.close()
    server.close()


@contextlib.asynccontextmanager
async def _writer(config: Config) -> AsyncIterator[Trip]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(64):
            writer.write(data)
        writer.close()

    server: Any = await aiordma.start_server(echo, LOCAL, 0, config=config)
    reader, writer = await aiordma.open_connection(*server.sockets[0].getsockname(), config=config)
    assert writer.transport.get_extra_info("aiordma.path") == "rdma"

    async def trip() -> None:
        writer.write(_BYTES)
        await reader.readexactly(64)

    yield trip
    writer.close()
    await writer.wait_closed()
    server.close()


@contextlib.asynccontextmanager
async def _trio(config: Config) -> AsyncIterator[Trip]:
    import trio

    aiordma.install(remember=False)
    try:
        (listener,) = await trio.open_tcp_listeners(0, host=LOCAL)

        async def echo(stream: Any) -> None:
            async with stream:
                async for data in stream:
                    await stream.send_all(data)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, echo, [listener])
            async with await trio.open_tcp_stream(LOCAL, listener.socket.getsockname()[1]) as stream:
                assert hasattr(stream.socket, "stream")  # it is one of aiordma's

                async def trip() -> None:
                    await stream.send_all(_BYTES)
                    assert len(await stream.receive_some(64)) == 64

                yield trip
            nursery.cancel_scope.cancel()
    finally:
        aiordma.uninstall()


@contextlib.asynccontextmanager
async def _datagrams(config: Config) -> AsyncIterator[Trip]:
    async with await aiordma.listen_datagram(LOCAL, config=config) as listener:
        async with await aiordma.connect_datagram(LOCAL, listener.port, config=config) as client:
            async with await listener.accept() as server:
                assert client.path == server.path == "rdma"

                async def trip() -> None:
                    await client.send(_BYTES)
                    await server.send(await server.receive())
                    await client.receive()

                yield trip


@contextlib.asynccontextmanager
async def _channels(config: Config) -> AsyncIterator[Trip]:
    async with await channel.listen(LOCAL, config=config) as listener:
        async with await channel.connect(LOCAL, listener.port, config=config) as client:
            async with await listener.accept() as server:
                assert client.path == server.path == "rdma"
                ends = [End(each.channel, keeps_views=False) for each in (client, server)]

                async def trip() -> None:
                    for one, other in (ends, ends[::-1]):
                        await one.send(b"", _BYTES)
                        await other.received(1)
                        other.messages.clear()

                yield trip


@contextlib.asynccontextmanager
async def _calls(config: Config) -> AsyncIterator[Trip]:
    service = rpc.Service("t")

    @service.method
    async def echo(data: bytes) -> bytes:
        return data

    async with rpc.serve(service, LOCAL, 0, config=config) as server:
        async with rpc.connect(LOCAL, server.port, config=config) as client:

            async def trip() -> None:
                await client.call("t.echo", _BYTES, returns=bytes)

            yield trip
            assert client.path == "rdma"


@contextlib.asynccontextmanager
async def _memory(config: Config) -> AsyncIterator[Trip]:
    from tests.memory.pairs import pair

    async with pair("rdma") as (client, _), memory.register(_BYTES) as theirs:
        remote = await client.open(theirs.descriptor(memory.Rights.READ))
        ours = await memory.alloc(64)

        async def trip() -> None:
            await remote.read(ours)

        yield trip
        ours.close()


def _trips(surface: str) -> Any:
    config = Config(device=DEVICE)
    if surface in ("stream", "tls", "tcp"):
        mode = {"stream": "rdma", "tcp": "tcp", "tls": "tcp"}[surface]
        return _stream(config, mode, surface == "tls")
    makers: dict[str, Any] = {
        "transport": _transport,
        "writer": _writer,
        "trio sockets": _trio,
        "datagrams": _datagrams,
        "channels": _channels,
        "calls": _calls,
        "memory": _memory,
    }
    return makers[surface](config)


@pytest.mark.parametrize("surface", CALLS)
async def test_a_round_trip_calls_no_more_functions_than_it_needs(
    surface: str, anyio_backend: Any, request: pytest.FixtureRequest
) -> None:
    most = CALLS[surface][anyio_backend == LOOPS["trio"]]
    if most is None:
        pytest.skip("another loop's surface")
    if request.config.getoption("orders") is not None:
        pytest.skip("in other orders other functions are called")
    called: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _arg: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_PACKAGE):
            called[f"{Path(code.co_filename).name}:{code.co_name}"] += 1

    async with _trips(surface) as trip:
        for _ in range(10):
            await trip()
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            for _ in range(_TRIPS):
                await trip()
        finally:
            sys.setprofile(before)
    # Less than one for each: a timer, or what is still to be set up.
    assert called.total() // _TRIPS <= most, called.most_common(30)
