"""A kernel's client that gives up, dies or falls silent between the Accept and the Confirm.

The handshake is over by the limits of this end, which then holds nothing of that client, and serves the next.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import anyio
import pytest

import aiordma
from aiordma.links.smcr.group import KernelGroup
from tests.kernel_option import options
from tests.kernel_peer import CONFIG, Kernel, engine, kernel
from tests.virtual import on_virtual_asyncio

if TYPE_CHECKING:
    from aiordma.links.engine import Engine

__all__ = ["engine", "kernel", "options"]

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("options")]

#: Seconds for one message of the peer, and some.
LIMIT = CONFIG.negotiate_timeout_ms / 1000 + 1
ACCEPT = 2
#: Clients one after the other. Four set-ups of one address at a time are the most.
MANY = 12
LINGER_NONE = b"\1\0\0\0\0\0\0\0"


async def accepted(kernel: Kernel, port: int) -> socket.socket:
    """The connection of a client that has its Accept, whole."""
    loop, sock = asyncio.get_running_loop(), socket.socket()
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", port))
    await loop.sock_sendall(sock, kernel.peer.port.proposal().encode())
    head = b""
    while len(head) < 8:
        head += await loop.sock_recv(sock, 8 - len(head))
    assert head[4] == ACCEPT
    left = int.from_bytes(head[5:7]) - len(head)
    while left:
        left -= len(await loop.sock_recv(sock, left))
    return sock


def stop(sock: socket.socket, how: str) -> None:
    if how == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
    if how == "ended":
        sock.shutdown(socket.SHUT_WR)
    elif how != "silent":
        sock.close()


def groups(engine: Engine) -> list[KernelGroup]:
    return [group for group in engine.all_groups if isinstance(group, KernelGroup)]


@on_virtual_asyncio
@pytest.mark.parametrize("how", ["closed", "reset", "ended", "silent"])
async def test_first_contacts(kernel: Kernel, engine: Engine, how: str) -> None:
    """Each had a queue pair and a link group of its own."""
    async with aiordma.listen("127.0.0.1", 0, config=CONFIG) as listener:
        at_rest = engine.pool.statistics().used_bytes
        for number in range(1, MANY + 1):
            sock = await accepted(kernel, listener.port)
            assert len(groups(engine)) == 1
            stop(sock, how)
            await anyio.sleep(LIMIT)
            assert listener.statistics().failed == number
            sock.close()
            assert groups(engine) == []
            assert engine.pool.statistics().used_bytes == at_rest
        theirs, _ = await kernel.connect(listener.port)
        ours = await listener.accept()
        assert (ours.path, ours.smc_peer) == ("rdma", "SMC-R v2.1 of aiordma")
        await theirs.send(b"served")
        assert await ours.receive() == b"served"
        ours.abort()


@on_virtual_asyncio
@pytest.mark.parametrize("how", ["closed", "reset", "ended", "silent"])
async def test_clients_that_join(kernel: Kernel, engine: Engine, how: str) -> None:
    """What the link's other connection does goes on meanwhile."""
    async with aiordma.listen("127.0.0.1", 0, config=CONFIG) as listener:
        theirs, _ = await kernel.connect(listener.port)
        ours = await listener.accept()
        (group,) = groups(engine)
        for number in range(1, MANY + 1):
            sock = await accepted(kernel, listener.port)
            assert len(group.members) == 2
            stop(sock, how)
            await anyio.sleep(LIMIT)
            await theirs.send(b"meanwhile")
            assert await ours.receive() == b"meanwhile"
            assert listener.statistics().failed == number
            sock.close()
            assert len(group.members) == 1
        more, _ = await kernel.connect(listener.port)
        second = await listener.accept()
        assert second.path == "rdma"
        await more.send(b"served")
        assert await second.receive() == b"served"
        for stream in ours, second:
            stream.abort()


#: Seconds until a stream that has an end at both ends, but for the peer's word on the link, is given up.
UNANSWERED = CONFIG.link_timeout_ms / 1000 + 3


@on_virtual_asyncio
@pytest.mark.parametrize("first", ["the peer", "this end"])
async def test_a_stream_that_ends_on_tcp_only(kernel: Kernel, engine: Engine, first: str) -> None:
    """Its ring is used no more while the link lasts: a program of the kernel's may close as late as it likes,
    so its other streams go on."""
    async with aiordma.listen("127.0.0.1", 0, config=CONFIG) as listener:
        theirs, _ = await kernel.connect(listener.port)
        ours = await listener.accept()
        (group,) = groups(engine)
        (other,) = group.members
        for number in range(1, 4):
            _, member = await kernel.connect(listener.port)
            ending = await listener.accept()
            (held,) = group.members - {other}
            if first == "the peer":
                kernel.sockets[-1].shutdown(socket.SHUT_WR)
                await anyio.sleep(UNANSWERED)
                assert held.carrier is not None
            member.pipe.forget()
            await ending.aclose()
            if first == "this end":
                await anyio.sleep(UNANSWERED)
                assert held.carrier is not None  # it is stopped, perhaps
                kernel.sockets[-1].shutdown(socket.SHUT_WR)
            assert held in group.members
            await anyio.sleep(UNANSWERED)
            assert group.members == {other}
            assert held.carrier is None
            assert held.mirror is None or held.mirror.freed
            assert group.places.lost == number
            await theirs.send(b"meanwhile")
            assert await ours.receive() == b"meanwhile"
        ours.abort()


@on_virtual_asyncio
async def test_a_stream_whose_peer_closes_late_is_given_up_by_none(kernel: Kernel, engine: Engine) -> None:
    async with aiordma.listen("127.0.0.1", 0, config=CONFIG) as listener:
        theirs, _ = await kernel.connect(listener.port)
        ours = await listener.accept()
        (group,) = groups(engine)
        kernel.sockets[-1].shutdown(socket.SHUT_WR)
        await ours.send(b"the answer")
        await ours.aclose()
        await anyio.sleep(1)
        assert await theirs.receive() == b"the answer"
        await theirs.aclose()
        await anyio.sleep(1)
        assert not group.members
        assert group.places.lost == 0
