"""Clients that send garbage, send nothing, stop half-way or come in thousands harm themselves only."""

from __future__ import annotations

import logging
import os
import resource
import socket
import struct
from random import Random
from typing import TYPE_CHECKING

import anyio
import pytest

from aiordma.config import Config
from aiordma.errors import Code
from aiordma.proto.clc import Decline, Proposal, decode
from aiordma.streams.connector import connect
from aiordma.streams.listener import listen
from tests.health import until
from tests.virtual import in_virtual_time

from .serving import LOCAL, check_echo, expected, serving

if TYPE_CHECKING:
    from .fake import Engine

pytestmark = pytest.mark.anyio

EYE = b"\xe2\xd4\xc3\xd9"
PROPOSAL = Proposal(engine_id=bytes(16), nonce=bytes(16), host_id=bytes(16), gid=bytes(16)).encode()


def header(kind: int, length: int, version: int = 0x20) -> bytes:
    return struct.pack(">4sBHB", EYE, kind, length, version)


# Each begins like CLC, so it is no plain client's stream, and breaks a rule later.
BROKEN = {
    "trailer missing": PROPOSAL[:-4] + b"nope",
    "wrong type first": Decline(diagnosis=1).encode(),
    "accept instead of proposal": header(2, 68) + bytes(56) + EYE,
    "too many ids": PROPOSAL[:80] + b"\xff" + PROPOSAL[81:],
    "two proposals": PROPOSAL + PROPOSAL,
    "garbage instead of confirm": PROPOSAL + b"GET / HTTP/1.1\r\n\r\n",
    "confirm that is no confirm": PROPOSAL + header(3, 68) + bytes(60),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_client_that_breaks_the_rules_is_dropped(
    engine: Engine, data: bytes, at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as listener:
        async with await connect(LOCAL, listener.port) as friend:
            async with await anyio.connect_tcp(LOCAL, listener.port) as client:
                try:
                    for part in [data] if at_once else [data[i : i + 1] for i in range(len(data))]:
                        await client.send(part)
                    while True:
                        await client.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    pass
            await until(lambda: listener.statistics().failed == 1)
            await check_echo(friend)
    assert "closed before it could be used" in caplog.text


async def test_random_messages(engine: Engine) -> None:
    """Whatever comes, whole or in pieces: a plain stream, or an end; never anything else."""
    random = Random(7)
    async with serving(config=Config(negotiate_timeout_ms=30, server_first_wait_ms=5)) as listener:
        for _ in range(60):
            data = bytearray(PROPOSAL + PROPOSAL)
            for _ in range(random.randrange(1, 6)):
                data[random.randrange(len(data))] = random.randrange(256)
            del data[random.randrange(1, len(data)) :]
            async with await anyio.connect_tcp(LOCAL, listener.port) as client:
                try:
                    await client.send(bytes(data))
                    await client.send_eof()
                    while True:
                        await client.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError, OSError):
                    pass
        async with await connect(LOCAL, listener.port) as friend:
            await check_echo(friend)
        done = listener.statistics()
        assert done.failed + done.tcp + done.rdma + done.undecided == done.accepted == 61


@pytest.mark.parametrize("sent", [EYE + b"\x01", PROPOSAL[:-1], PROPOSAL])
async def test_who_stops_half_way_is_dropped_in_time(engine: Engine, sent: bytes) -> None:
    async with serving(config=Config(negotiate_timeout_ms=40)) as listener:
        async with await anyio.connect_tcp(LOCAL, listener.port) as client:
            await client.send(sent)
            await until(lambda: bool(listener.statistics().failed or listener.statistics().tcp))
            # Five bytes may still be a plain client's; a Proposal may not.
            assert listener.statistics().tcp == (len(sent) < 8)


async def test_a_client_of_a_newer_version_that_needs_more_gets_tcp(engine: Engine) -> None:
    """What it needs is not known here. Before, it was not looked at, and the two went on by RDMA."""
    proposal = Proposal(engine_id=bytes(16), nonce=bytes(16), host_id=bytes(16), gid=bytes(16), needs=4)
    async with serving() as listener, await anyio.connect_tcp(LOCAL, listener.port) as client:
        await client.send(proposal.encode())
        decline = decode(await client.receive())
        assert isinstance(decline, Decline)
        assert decline.diagnosis == Code.VERSION_MISMATCH
        await client.send(b"hello")
        assert await client.receive() == b"hello"
        assert listener.statistics().tcp == 1


@in_virtual_time
async def test_a_trickling_client_has_the_time_of_one_message(engine: Engine) -> None:
    async with serving(config=Config(negotiate_timeout_ms=60)) as listener:
        async with await anyio.connect_tcp(LOCAL, listener.port) as client:

            async def trickle() -> None:
                await client.send(PROPOSAL[:8])
                for byte in PROPOSAL[8:]:
                    await client.send(bytes([byte]))
                    await anyio.sleep(0.005)
                await client.receive()

            with pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream)), anyio.fail_after(5):
                await trickle()
            await until(lambda: listener.statistics().failed == 1)


async def test_silent_clients_hold_up_nobody(engine: Engine) -> None:
    async with serving(config=Config(server_first_wait_ms=60_000)) as listener, expected(listener):
        silent = [await anyio.connect_tcp(LOCAL, listener.port) for _ in range(50)]
        half = await anyio.connect_tcp(LOCAL, listener.port)
        await half.send(PROPOSAL[:20])
        async with await connect(LOCAL, listener.port) as friend:
            assert friend.path == "rdma"
            await check_echo(friend)
            assert listener.statistics().undecided == 51
        for stream in [*silent, half]:
            await stream.aclose()


async def test_too_many_negotiations_get_tcp_at_once(engine: Engine) -> None:
    async with serving(max_negotiations=1) as listener:
        async with await anyio.connect_tcp(LOCAL, listener.port) as slow:
            await slow.send(PROPOSAL)  # and never a Confirm
            await until(lambda: listener.statistics().negotiating == 1)
            async with await connect(LOCAL, listener.port) as stream:
                assert stream.path == "tcp"
                assert stream.fallback_reason is not None
                assert stream.fallback_reason.peer == Code.LIMIT_REACHED
                await check_echo(stream)
        await until(lambda: listener.statistics().negotiating == 0)
        async with await connect(LOCAL, listener.port) as stream:
            assert stream.path == "rdma"
    engine.offers = [offer for offer in engine.offers if offer.done]


async def test_pending_connections_are_bounded_and_the_rest_waits(engine: Engine) -> None:
    config = Config(server_first_wait_ms=60_000)
    async with await listen(LOCAL, config=config, max_pending=3) as listener, expected(listener):
        clients = [await anyio.connect_tcp(LOCAL, listener.port) for _ in range(5)]
        await until(lambda: listener.statistics().accepted == 3)
        await anyio.wait_all_tasks_blocked()
        assert listener.statistics().accepted == 3
        for client in clients:
            await client.send(b"hello")
        for _ in range(5):
            async with await listener.accept() as stream:
                assert await stream.receive() == b"hello"
        assert listener.statistics().accepted == 5
        for client in clients:
            await client.aclose()


async def test_reset_while_undecided(engine: Engine) -> None:
    async with serving(config=Config(server_first_wait_ms=60_000)) as listener, expected(listener):
        for sent in (b"", PROPOSAL[:10], PROPOSAL):
            sock = socket.create_connection((LOCAL, listener.port))
            sock.send(sent)
            before = listener.statistics()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await anyio.wait_all_tasks_blocked()
            sock.close()
            await until(lambda n=before.failed: listener.statistics().failed == n + 1)  # type: ignore[misc]
        async with await connect(LOCAL, listener.port) as friend:
            await check_echo(friend)


async def test_out_of_file_descriptors_is_survived(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """accept() fails while there are no descriptors; later clients are served, and the loop never spins."""
    async with serving() as listener:
        clients = [socket.socket() for _ in range(2)]
        for client in clients:
            client.setblocking(False)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = max(int(fd) for fd in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))
        try:
            for client in clients:
                client.connect_ex((LOCAL, listener.port))
            fill = []
            while True:
                try:
                    fill.append(os.dup(0))
                except OSError:
                    break
            await until(lambda: "cannot accept" in caplog.text)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in fill:
                os.close(fd)
        assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1
        for client in clients:
            client.send(b"x")
            await anyio.wait_readable(client)
            assert client.recv(10) == b"x"
            client.close()


@pytest.mark.parametrize("how", ["ends", "resets"])
@pytest.mark.parametrize("sent", [30, len(PROPOSAL)])
async def test_a_client_that_ends_in_the_negotiation_is_not_accepted(
    engine: Engine, sent: int, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its program has no connection yet. One that has said nothing may be a plain one, and is returned."""
    async with await listen(LOCAL) as listener:
        with socket.create_connection((LOCAL, listener.port)) as client:
            client.sendall(PROPOSAL[:sent])
            if sent == len(PROPOSAL):
                await anyio.wait_readable(client)  # the answer is there
            if how == "resets":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await until(lambda: listener.statistics().failed == 1)
        assert "before it could be used" in caplog.text
        with socket.create_connection((LOCAL, listener.port)):
            pass
        stream = await listener.accept()
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()
        assert stream.path == "tcp"
        await stream.aclose()
        assert listener.statistics().accepted == 2
