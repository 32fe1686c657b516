"""Peers that do not answer: they may be plain, busy, or another program than before."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aiordma.config import Config
from aiordma.errors import Code, FallbackReason
from aiordma.negotiation import client, peer_cache
from aiordma.negotiation.clc_io import ClcIO
from aiordma.negotiation.client import receive_or_connect
from aiordma.negotiation.tcp_connect import connect_tcp
from aiordma.proto import clc
from aiordma.proto.handshake import ClientHandshake, Timeouts
from aiordma.streams.connector import connect

from .fake import Engine, Trouble
from .serving import LOCAL, plain_server, serving, tcp_pair

if TYPE_CHECKING:
    from anyio.abc import SocketStream

pytestmark = pytest.mark.anyio

PATIENT = 600_000
"""Milliseconds that nobody waits for."""
REASON = FallbackReason.of_local(Code.PLAIN_TCP_PEER)


async def wait_for_a_line(stream: SocketStream) -> None:
    """As redis-server."""
    got = b""
    while not got.endswith(b"\n"):
        got += await stream.receive()
    await stream.send(got)


async def say_a_line(stream: Any) -> None:
    await stream.send(b"line\n")
    assert await stream.receive() == b"line\n"


async def test_a_server_that_negotiated_is_replaced_by_a_silent_one(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is taken for a busy one some times, each time no longer than an unknown peer."""
    monkeypatch.setattr(peer_cache, "_BELIEVED_S", 0.02)
    config = Config(head_start_ms=1, negotiate_timeout_ms=PATIENT)
    async with plain_server(wait_for_a_line) as port:
        peer_cache.remember_clc((LOCAL, port, False))
        for _ in range(peer_cache._SILENCES + 2):
            async with await connect(LOCAL, port, config=config) as stream:
                assert stream.path == "tcp"
                await say_a_line(stream)
    assert engine.proposals == peer_cache._SILENCES


@pytest.mark.parametrize("known", [False, True])
async def test_clients_that_are_less_patient_than_the_head_start(engine: Engine, known: bool) -> None:
    """What they have waited counts all the same: one of them connects."""
    config = Config(head_start_ms=1000, negotiate_timeout_ms=PATIENT)
    async with plain_server(wait_for_a_line) as port:
        if known:
            peer_cache.remember_clc((LOCAL, port, False))
        for _ in range(50):
            with anyio.move_on_after(0.2):
                async with await connect(LOCAL, port, config=config) as stream:
                    await say_a_line(stream)
                    return
    pytest.fail("no client has connected")


async def test_a_server_that_announces_itself_is_asked_after_it_was_silent(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_cache, "_BELIEVED_S", 0)
    config = Config(head_start_ms=0, negotiate_timeout_ms=PATIENT)
    answers = anyio.Event()
    engine.trouble = Trouble(answer=answers.wait)
    async with serving() as listener:
        async with await connect(LOCAL, listener.port, config=config) as stream:
            assert stream.path == "tcp"
        answers.set()
        monkeypatch.setattr(peer_cache, "_BELIEVED_S", 20)
        async with await connect(LOCAL, listener.port, config=config) as stream:
            assert stream.path == "rdma"
        peer_cache.remember_plain((LOCAL, listener.port, False), REASON, 60)
        async with await connect(LOCAL, listener.port) as stream:
            assert stream.path == "rdma"


async def test_an_announcement_in_the_name_of_a_plain_server_costs_some_waits_only(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user can bind the name."""
    monkeypatch.setattr(peer_cache, "_BELIEVED_S", 0.02)
    monkeypatch.setattr(peer_cache, "is_announced", lambda _port: True)
    async with plain_server(wait_for_a_line) as port:
        for _ in range(10):
            async with await connect(LOCAL, port, config=Config(head_start_ms=1)) as stream:
                await say_a_line(stream)
    assert engine.proposals == peer_cache._SILENCES


@pytest.mark.parametrize("slow", [False, True], ids=["at-once", "while-it-is-made"])
async def test_a_connection_that_is_not_needed_is_withdrawn(
    slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's program is not to see a client that connects and leaves."""
    monkeypatch.setattr(client, "_CONNECTING_S", 20)
    proposal = clc.Proposal(engine_id=bytes(16), nonce=bytes(16), host_id=bytes(16))
    decline = clc.Decline(diagnosis=Code.NO_DEVICE).encode()
    with (
        tcp_pair() as (answering, asking),
        socket.create_server((LOCAL, 0)) as listening,
        ClcIO(asking) as io,
    ):
        for sock in (answering, listening):
            sock.setblocking(False)
        handshake = ClientHandshake(proposal, Timeouts(), io.now())

        async def connect_again() -> socket.socket:
            answering.send(decline)
            if slow:
                await anyio.sleep(0.05)  # the answer is read meanwhile
            return await connect_tcp([(socket.AF_INET, listening.getsockname())])

        events, plain = await receive_or_connect(io, handshake, 0.0, connect_again)
        assert events
        assert plain is None
        await anyio.wait_readable(listening)
        with contextlib.closing(listening.accept()[0]) as seen:
            await anyio.wait_readable(seen)
            message = clc.decode(seen.recv(4096))
            assert isinstance(message, clc.Proposal)
            assert message.kind == clc.Kind.QUESTION
            await anyio.wait_readable(seen)
            assert seen.recv(1) == b""
