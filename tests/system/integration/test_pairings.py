"""Who meets whom on one port, each in a process of its own: aiordma with and without a device, and plain
sockets. The path is what both ends can, and both know why."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import anyio
import pytest

import aiordma
from aiordma.errors import Code
from tests.loops import LOOPS
from tests.processes import process
from tests.roles import LOCAL, echo
from tests.world import SLOWER

if TYPE_CHECKING:
    from tests.program import Control

pytestmark = pytest.mark.slow

HERE = "tests.system.integration.test_pairings"
NO_DEVICE = {"AIORDMA_DEVICE": "none"}
DATA = bytes(range(256)) * 2000


async def server(control: Control) -> None:
    """Echoes; says its port, then [path, reason's code, peer's code, text] of each stream."""

    async def serve(stream: aiordma.RdmaStream) -> None:
        why = stream.fallback_reason
        control.say([stream.path, why and why.code, why and why.peer, why and why.text])
        await echo(stream)

    async with await aiordma.listen(LOCAL) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        control.say(listener.port)
        await control.heard_all()
        tasks.cancel_scope.cancel()


async def client(control: Control, port: int) -> None:
    """Sends and gets the data back; says what :func:`server` does."""
    async with await aiordma.connect(LOCAL, port) as stream, anyio.create_task_group() as tasks:
        why = stream.fallback_reason
        tasks.start_soon(stream.send, DATA)
        got = b""
        while len(got) < len(DATA):
            got += await stream.receive()
        assert got == DATA
        control.say([stream.path, why and why.code, why and why.peer, why and why.text])


async def plain_server(control: Control) -> None:
    """asyncio's own echo server."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    listener = await asyncio.start_server(serve, LOCAL, 0)
    control.say(listener.sockets[0].getsockname()[1])
    await control.heard_all()
    listener.close()


def talk_plainly(port: int) -> None:
    with socket.create_connection((LOCAL, port), timeout=20 * SLOWER) as sock:
        got = b""
        for at in range(0, len(DATA), 1000):
            sock.sendall(DATA[at : at + 1000])
            got += sock.recv(65536)
        while len(got) < len(DATA):
            got += sock.recv(65536)
        assert got == DATA


@pytest.mark.parametrize("loop", LOOPS)
def test_on_one_port(loop: str) -> None:
    """An aiordma client, one without a device and a plain one meet the same server, in turns."""
    with process(f"{HERE}:server", loop=loop) as listening:
        port = listening.hear()
        for _ in range(2):
            with process(f"{HERE}:client", loop=loop, port=port) as able:
                assert able.hear() == listening.hear() == ["rdma", None, None, None]
            with process(f"{HERE}:client", loop=loop, env=NO_DEVICE, port=port) as unable:
                path, code, peer, text = unable.hear()
                assert (path, code, peer) == ("tcp", Code.DISABLED, None)
                assert text
                path, code, peer, text = listening.hear()
                assert (path, code, peer) == ("tcp", Code.PEER_NO_SMC, None)
            talk_plainly(port)
            path, code, peer, text = listening.hear()
            assert (path, code, peer) == ("tcp", Code.PEER_NO_SMC, None)
            assert text


@pytest.mark.parametrize("loop", LOOPS)
def test_server_without_a_device(loop: str) -> None:
    with process(f"{HERE}:server", loop=loop, env=NO_DEVICE) as listening:
        port = listening.hear()
        with process(f"{HERE}:client", loop=loop, port=port) as able:
            path, code, peer, text = able.hear()
            assert (path, code, peer) == ("tcp", Code.DISABLED, Code.DISABLED)
            assert text
            path, code, peer, text = listening.hear()
            assert (path, code) == ("tcp", Code.DISABLED)
            assert "configuration" in text
        with process(f"{HERE}:client", loop=loop, env=NO_DEVICE, port=port) as unable:
            assert unable.hear()[:2] == ["tcp", Code.DISABLED]
            assert listening.hear()[:2] == ["tcp", Code.PEER_NO_SMC]
        talk_plainly(port)
        assert listening.hear()[:2] == ["tcp", Code.PEER_NO_SMC]


@pytest.mark.parametrize("env", [{}, NO_DEVICE], ids=["able", "without a device"])
@pytest.mark.parametrize("loop", LOOPS)
def test_plain_server(loop: str, env: dict[str, str]) -> None:
    with process(f"{HERE}:plain_server") as listening:
        port = listening.hear()
        with process(f"{HERE}:client", loop=loop, env=env, port=port) as its_client:
            path, code, peer, text = its_client.hear()
            assert (path, code, peer) == ("tcp", Code.DISABLED if env else Code.PLAIN_TCP_PEER, None)
            assert text
