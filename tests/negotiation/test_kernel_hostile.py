"""Clients whose SYN says that they are a kernel's SMC-R, and whose messages are not what a kernel sends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import anyio
import pytest

import aiordma
from aiordma.errors import Code
from aiordma.links.smcr.group import KernelGroup
from aiordma.proto import clc
from aiordma.proto.errors import LocalProtocolError
from aiordma.proto.smcr import SmcrServer
from tests.health import until
from tests.kernel_option import options
from tests.kernel_peer import CONFIG, Kernel, engine, kernel
from tests.processes import PATIENCE
from tests.vm.smc.peer import Fallback

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiordma.links.engine import Engine

__all__ = ["engine", "kernel", "options"]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("options"),
    pytest.mark.parametrize("anyio_backend", [pytest.param("asyncio", id="asyncio")]),
]

CLAIM = clc.Claim(engine_id=b"C" * 16, ticket=3, service=4, token=5, rkey=6, ring_addr=4096, ring_bytes=65536)


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[socket.socket]:
    with socket.socket() as sock:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        yield sock


async def say(sock: socket.socket, message: bytes) -> bytes:
    """What comes next; empty: the end."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, message)
    with anyio.fail_after(PATIENCE), contextlib.suppress(ConnectionResetError):
        return await loop.sock_recv(sock, 4096)
    return b""


async def test_a_client_asks_once_only(kernel: Kernel, engine: Engine) -> None:
    """An end of aiordma does, whose link is lost. A kernel's connection had two places on its link then, of
    which one was never given back."""
    async with aiordma.listen("127.0.0.1", 0, config=CONFIG) as listener:
        await kernel.connect(listener.port)
        ours = await listener.accept()
        (group,) = [each for each in engine.all_groups if isinstance(each, KernelGroup)]
        assert group.agreed is not None
        tokens = set(group.agreed.tokens)
        proposal = kernel.peer.port.proposal()
        async with connected(listener.port) as sock:
            accept = clc.decode(await say(sock, proposal.encode()))
            assert isinstance(accept, clc.Accept)
            assert not accept.first_contact
            again = proposal.changed(
                engine_id=b"E" * 16, nonce=bytes(16), host_id=bytes(16), unknown_qpn=accept.qpn
            )
            assert await say(sock, again.encode()) == b""
        await until(lambda: len(group.members) == 1)
        assert group.agreed.tokens == tokens
        assert listener.statistics().failed == 1
        ours.abort()


async def test_an_answer_that_cannot_be_made_is_a_decline(
    kernel: Kernel, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever made it so, the client goes on over TCP."""

    def cannot(*_: object) -> None:
        raise LocalProtocolError("a test")

    monkeypatch.setattr(SmcrServer, "ready", cannot)
    async with aiordma.listen("127.0.0.1", 0, config=CONFIG) as listener:
        with pytest.raises(Fallback):
            await kernel.connect(listener.port)
        async with await listener.accept() as ours:
            assert ours.fallback_reason is not None
            assert ours.fallback_reason.code == Code.INTERNAL
        assert not any(isinstance(each, KernelGroup) for each in engine.all_groups)


@pytest.mark.parametrize("room", [8, 0], ids=["answered", "declined"])
async def test_a_claim_of_a_ring_is_refused_at_once(room: int, engine: Engine) -> None:
    """No kernel was granted any. Such a negotiation had no end, and there are only so many at a time."""
    async with aiordma.listen("127.0.0.1", 0, config=CONFIG, max_negotiations=room) as listener:
        async with connected(listener.port) as sock:
            assert await say(sock, CLAIM.encode()) == b""
        await until(lambda: listener.statistics().failed == 1)
        assert listener.statistics().negotiating == 0
