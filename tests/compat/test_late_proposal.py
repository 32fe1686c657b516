"""A client taken for a silent one: its late Proposal does not become stream data."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import anyio
import pytest

from aiordma.compat import connection
from aiordma.compat.connection import create_server, start_server
from aiordma.errors import Code, FallbackReason
from aiordma.negotiation.dialogue import NegotiationResult
from aiordma.proto import clc, clcstream
from tests.health import settle

from .recorder import BufferedRecorder, Recorder

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
