"""A client taken for a silent one: its late Proposal does not become stream data."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma.compat import connection, fallback
from aiordma.compat.connection import create_server, start_server
from aiordma.compat.fallback import Introduction
from aiordma.errors import Code, FallbackReason
from aiordma.negotiation.dialogue import NegotiationResult
from aiordma.proto import clc, clcstream
from tests.health import settle, until

from .recorder import BufferedRecorder, Recorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.anyio


async def give_up(sock: socket.socket, *_: object, **__: object) -> NegotiationResult:
    """Replaces the server's negotiation: the client has sent nothing so far."""
    reason = FallbackReason.of_local(Code.PEER_NO_SMC)
    return NegotiationResult(None, sock, reason, sock.getsockname(), sock.getpeername(), silent=True)


def proposal() -> bytes:
    return clc.Proposal(engine_id=bytes(16), nonce=bytes(16), host_id=bytes(16)).encode()


@pytest.mark.parametrize("kind", [Recorder, BufferedRecorder, asyncio.StreamReader])
@pytest.mark.parametrize("step", [1, 7, 10_000])
@pytest.mark.parametrize("late", [True, False])
async def test_a_late_proposal_is_kept_from_the_stream(
    kind: Any, step: int, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "negotiate_accepted", give_up)
    loop = asyncio.get_running_loop()
    received: asyncio.Future[bytes] = loop.create_future()
    server: Any
    if kind is asyncio.StreamReader:

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            received.set_result(await reader.read())
            writer.close()

        server = await start_server(handler, "127.0.0.1", 0)
    else:

        class Server(kind):  # type: ignore[misc]
            def connection_lost(self, exc: BaseException | None) -> None:
                super().connection_lost(exc)
                received.set_result(bytes(self.data))

        server = await create_server(Server, "127.0.0.1", 0)
    stream = b"the first bytes of the stream" if late else clc.EYE_CATCHER + b"? No, just a stream"
    data = (proposal() if late else b"") + stream
    with socket.socket() as client:
        client.setblocking(False)
        await loop.sock_connect(client, server.sockets[0].getsockname())
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(data), step):
            await loop.sock_sendall(client, data[start : start + step])
            await settle(2)
        client.shutdown(socket.SHUT_WR)
        with anyio.fail_after(20):
            answer = b""
            while chunk := await loop.sock_recv(client, 1000):
                answer += chunk
            assert await received == stream
    messages = clcstream.Splitter().feed(answer)
    assert [getattr(message, "diagnosis", None) for message in messages] == [Code.PLAIN_TCP_PEER] * late
    server.close()
    await settle()


@asynccontextmanager
async def held(
    factory: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Any, Introduction, socket.socket]]:
    """A server's protocol whose client has sent what a Proposal begins with, and what stands in for it."""
    monkeypatch.setattr(connection, "negotiate_accepted", give_up)
    monkeypatch.setattr(fallback, "_HOLD_S", 3600)
    made: list[Introduction] = []

    class Kept(Introduction):
        def connection_made(self, transport: Any) -> None:
            made.append(self)
            super().connection_made(transport)

    monkeypatch.setattr(connection, "Introduction", Kept)
    server: Any = await create_server(factory, "127.0.0.1", 0)
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setblocking(False)
        await loop.sock_connect(client, server.sockets[0].getsockname())
        await loop.sock_sendall(client, clc.EYE_CATCHER)
        await until(lambda: bool(made) and bool(made[0]._held))
        yield made[0].protocol, made[0], client
    server.close()
    await until(lambda: made[0].protocol.lost.done())
    await settle()


@pytest.mark.parametrize("kind", [Recorder, BufferedRecorder])
async def test_what_was_no_proposal_waits_while_reading_is_paused(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with held(kind, monkeypatch) as (protocol, introduction, client):
        protocol.transport.pause_reading()
        introduction._release()  # as its timer does
        assert protocol.events == ["made"]
        assert protocol.transport.get_protocol() is protocol
        await asyncio.get_running_loop().sock_sendall(client, b" and more")
        protocol.transport.resume_reading()
        await until(lambda: protocol.data == clc.EYE_CATCHER + b" and more")
        assert protocol.transport.get_protocol() is protocol


async def test_a_pause_between_the_pieces_of_what_was_held(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pauses(BufferedRecorder):
        def __init__(self) -> None:
            super().__init__(size=3)

        def buffer_updated(self, nbytes: int) -> None:
            super().buffer_updated(nbytes)
            self.transport.pause_reading()

    async with held(Pauses, monkeypatch) as (protocol, introduction, _):
        introduction._release()
        assert protocol.data == clc.EYE_CATCHER[:3]
        protocol.transport.resume_reading()
        await until(lambda: protocol.data == clc.EYE_CATCHER)
        protocol.transport.resume_reading()


async def test_what_was_no_proposal_goes_to_the_protocol_of_then(monkeypatch: pytest.MonkeyPatch) -> None:
    async with held(Recorder, monkeypatch) as (protocol, introduction, client):
        other = Recorder()
        protocol.transport.set_protocol(other)
        introduction._release()
        assert other.data == clc.EYE_CATCHER
        assert protocol.events == ["made"]
        assert protocol.transport.get_protocol() is other
        await asyncio.get_running_loop().sock_sendall(client, b" and more")
        await until(lambda: other.data == clc.EYE_CATCHER + b" and more")
        protocol.transport.close()
        await other.lost
        protocol.connection_lost(None)


async def test_an_error_about_what_was_no_proposal_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, reported: list[dict[str, Any]]
) -> None:
    class Fails(Recorder):
        def data_received(self, data: bytes) -> None:
            raise ZeroDivisionError

    async with held(Fails, monkeypatch) as (protocol, introduction, _):
        introduction._release()
        with anyio.fail_after(20):
            assert isinstance(await protocol.lost, ZeroDivisionError)
        assert [type(context["exception"]) for context in reported] == [ZeroDivisionError]


async def test_what_is_held_comes_before_tls_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop):
        pytest.skip("asyncio's own function sets the protocol of the transport that is shown")
    async with held(Recorder, monkeypatch) as (protocol, _, _):
        wrong: Any = None
        with pytest.raises(TypeError):
            await aiordma.start_tls(protocol.transport, protocol, wrong, server_side=True)
        assert protocol.data == clc.EYE_CATCHER
