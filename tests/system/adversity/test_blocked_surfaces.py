"""A loop that is blocked, and blocked again, on every surface: what was accepted before arrives each time."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
import trustme

import aiordma
import aiordma.valkey
from aiordma import rpc
from aiordma.channels import channel as channels
from aiordma.datagrams.connection import connect_datagram, listen_datagram
from tests.loops import LOOPS
from tests.pipes.channel_ends import End
from tests.processes import PATIENCE, process
from tests.roles import LOCAL
from tests.system.adversity.test_ends import _kept, _Protocol
from tests.valkey.model import ModelServer
from tests.world import needs_pyverbs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.program import Control

    Send = Callable[[bytes], Awaitable[None]]
    #: Waits for the next message, or for as many bytes.
    Take = Callable[[bytes], Awaitable[None]]

pytestmark = pytest.mark.anyio

HERE = "tests.system.adversity.test_blocked_surfaces"
#: So many pieces in one turn of the loop, before it is blocked, and as many between then and the next time.
COUNT = 24
PIECES = [bytes([n]) * 50 for n in range(2 * COUNT)]


@pytest.fixture
def anyio_backend() -> object:
    """The process that blocks has every loop, its peer one."""
    return LOOPS["asyncio"]


def block(control: Control) -> None:
    """Until the test has what it waited for."""
    os.set_blocking(control._reads, True)
    os.read(control._reads, 100)


# ---- the process that blocks: surface -> how it sends a piece, without a turn of the loop in between


async def _stream(port: int, mode: Any, authority: str) -> Send:
    stream = await aiordma.connect(LOCAL, port, mode=mode)
    _kept.append(stream)
    return stream.send


async def _transport(port: int, mode: Any, authority: str) -> Send:
    transport, _ = await aiordma.create_connection(_Protocol, LOCAL, port, mode=mode)
    _kept.append(transport)

    async def send(piece: bytes) -> None:
        transport.write(piece)

    return send


async def _tls(port: int, mode: Any, authority: str) -> Send:
    context = ssl.create_default_context(cadata=authority)
    stream = await aiordma.connect(LOCAL, port, mode=mode, ssl=context, rdma_outside_tls=True)
    _kept.append(stream)
    return stream.send


async def _datagrams(port: int, mode: Any, authority: str) -> Send:
    connection = await connect_datagram(LOCAL, port, mode=mode)
    _kept.append(connection)
    return connection.send


async def _channel(port: int, mode: Any, authority: str) -> Send:
    connected = await channels.connect(LOCAL, port, mode=mode)
    _kept.append(connected)

    async def send(piece: bytes) -> None:
        connected.send_soon(piece)

    return send


async def _calls(port: int, mode: Any, authority: str) -> Send:
    client = rpc.connect(LOCAL, port, mode=mode)
    _kept.append(client)
    opened = await client.__aenter__()
    assert await opened.call("test.take", b"", returns=None) is None

    async def send(piece: bytes) -> None:
        _kept.append(asyncio.ensure_future(opened.call("test.take", piece, returns=None)))

    return send


async def _items(port: int, mode: Any, authority: str) -> Send:
    client = rpc.connect(LOCAL, port, mode=mode)
    opened = await client.__aenter__()
    stream = opened.stream("test.take_all", returns=None)
    _kept.extend((client, stream))
    return (await stream.__aenter__()).send


async def _valkey(port: int, mode: Any, authority: str) -> Send:
    stream = await aiordma.valkey.connect(LOCAL, port, buffer_bytes=1 << 16)
    _kept.append(stream)
    return stream.send


SENDERS: dict[str, Callable[[int, Any, str], Awaitable[Send]]] = {
    "stream": _stream,
    "transport": _transport,
    "TLS": _tls,
    "datagrams": _datagrams,
    "channel": _channel,
    "calls": _calls,
    "items": _items,
    "valkey": _valkey,
}


async def blocking(control: Control, surface: str, port: int, mode: Any, authority: str) -> None:
    send = await SENDERS[surface](port, mode, authority)
    await control.hear()
    for pieces in (PIECES[:COUNT], PIECES[COUNT:]):
        for piece in pieces:
            await send(piece)
        if surface == "calls":
            await asyncio.sleep(0)  # each task has its first step, and this one goes on in the same turn
        block(control)
    os._exit(0)


# ---- its peer


@asynccontextmanager
async def _bytes(authority: trustme.CA | None) -> AsyncIterator[tuple[int, Callable[[], Awaitable[Take]]]]:
    options: dict[str, Any] = {}
    if authority is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(LOCAL).configure_cert(context)
        options = {"ssl": context, "rdma_outside_tls": True}
    async with await aiordma.listen(LOCAL, **options) as listener, AsyncExitStack() as ends:

        async def accept() -> Take:
            stream = await ends.enter_async_context(await listener.accept())

            async def take(piece: bytes) -> None:
                assert await stream.receive_exactly(len(piece)) == piece

            return take

        yield listener.port, accept


@asynccontextmanager
async def _messages() -> AsyncIterator[tuple[int, Callable[[], Awaitable[Take]]]]:
    async with await listen_datagram(LOCAL) as listener, AsyncExitStack() as ends:

        async def accept() -> Take:
            connection = await ends.enter_async_context(await listener.accept())

            async def take(piece: bytes) -> None:
                assert await connection.receive() == piece

            return take

        yield listener.port, accept


@asynccontextmanager
async def _channels() -> AsyncIterator[tuple[int, Callable[[], Awaitable[Take]]]]:
    async with await channels.listen(LOCAL) as listener, AsyncExitStack() as ends:

        async def accept() -> Take:
            connected = await ends.enter_async_context(await listener.accept())
            end = End(connected.channel, keeps_views=False)
            taken = 0

            async def take(piece: bytes) -> None:
                nonlocal taken
                taken += 1
                assert (await end.received(taken))[taken - 1] == piece

            return take

        yield listener.port, accept


@asynccontextmanager
async def _service() -> AsyncIterator[tuple[int, Callable[[], Awaitable[Take]]]]:
    service = rpc.Service("test")
    arrived: asyncio.Queue[bytes] = asyncio.Queue()

    @service.method
    async def take(data: bytes) -> None:
        if data:
            arrived.put_nowait(data)

    @service.method
    async def take_all(items: AsyncIterator[bytes]) -> None:
        async for item in items:
            arrived.put_nowait(item)

    async with rpc.serve(service, LOCAL, 0, drain_timeout=0) as server:

        async def accept() -> Take:
            async def take_one(piece: bytes) -> None:
                assert await arrived.get() == piece

            return take_one

        yield server.port, accept


@asynccontextmanager
async def _valkey_server() -> AsyncIterator[tuple[int, Callable[[], Awaitable[Take]]]]:
    server = await ModelServer.make(1 << 16)
    try:

        async def accept() -> Take:
            await server.accept()
            got = b""

            async def take(piece: bytes) -> None:
                nonlocal got
                while len(got) < len(piece):
                    got += await server.receive()
                assert got[: len(piece)] == piece
                got = got[len(piece) :]

            return take

        yield server.port, accept
    finally:
        server.close()


def served(surface: str, authority: trustme.CA) -> Any:
    if surface in ("stream", "transport"):
        return _bytes(None)
    if surface == "TLS":
        return _bytes(authority)
    if surface in ("calls", "items"):
        return _service()
    return {"datagrams": _messages, "channel": _channels, "valkey": _valkey_server}[surface]()


#: On TCP they wait for the end of the turn, all but the first (docs/howto/serve.md).
TOGETHER = ("channel", "calls", "items")
CASES = [
    *[(surface, "asyncio", "rdma") for surface in SENDERS if surface != "valkey"],
    *[(surface, "asyncio", "tcp") for surface in SENDERS if surface not in ("valkey", *TOGETHER)],
    *[(surface, "asyncio+uvloop", "rdma") for surface in SENDERS if surface != "valkey"],
    *[(surface, "trio", "rdma") for surface in SENDERS if surface not in ("valkey", "transport", "calls")],
    *[pytest.param("valkey", loop, "rdma", marks=needs_pyverbs) for loop in LOOPS],
]


@pytest.mark.parametrize(("surface", "loop", "mode"), CASES)
async def test_what_was_accepted_arrives(surface: str, loop: str, mode: str) -> None:
    authority = trustme.CA()
    async with served(surface, authority) as (port, accept):
        text = authority.cert_pem.bytes().decode()
        arguments = {"surface": surface, "port": port, "mode": mode, "authority": text}
        with process(f"{HERE}:blocking", loop, **arguments) as sender, anyio.fail_after(PATIENCE):
            take = await accept()
            sender.say("begin")
            for pieces in (PIECES[:COUNT], PIECES[COUNT:]):
                for piece in pieces:
                    await take(piece)
                sender.say("go on")
