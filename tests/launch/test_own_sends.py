"""Libraries that send to the descriptor of a connection, past its transport: their connections stay plain."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import uvloop

import aiordma
from aiordma.launch import hooks
from tests.roles import LOCAL

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("cache")
LOOPS: dict[str, Any] = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
WORDS = b"hello from past the transport"


class Echo(asyncio.Protocol):
    """Sends back what it gets; a client begins, and keeps the answer."""

    def __init__(self, begins: bool = False) -> None:
        self.begins = begins
        self.got = b""
        self.path = ""
        self.answered = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.path = transport.get_extra_info("aiordma.path", "tcp")
        if self.begins:
            self.send(WORDS)

    def send(self, data: bytes) -> None:
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        self.got += data
        if not self.begins:
            self.send(data)
        elif self.got == WORDS:
            self.answered.set()


class PastTransport(Echo):
    """As picows does it."""

    def send(self, data: bytes) -> None:
        os.write(self.transport.get_extra_info("socket").fileno(), data)


PastTransport.__module__ = "picows.picows"


def _local(begins: bool) -> Callable[[], Echo]:
    def factory() -> Echo:
        return PastTransport(begins)

    factory.__module__ = "picows.api"
    return factory


#: What makes the protocols of an end.
FACTORIES: dict[str, Callable[[bool], Callable[[], Echo]]] = {
    "ours": lambda begins: lambda: Echo(begins),
    "a class": lambda begins: functools.partial(PastTransport, begins),
    "a function": _local,
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("accepts", ["the loop", "the program"])
@pytest.mark.parametrize(
    ("client", "server"),
    [("a class", "a function"), ("a function", "ours"), ("ours", "a function"), ("ours", "ours")],
)
def test_what_is_sent_past_the_transport_arrives(loop: str, accepts: str, client: str, server: str) -> None:
    aiordma.install()
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        paths = runner.run(_echo(FACTORIES[client](True), FACTORIES[server](False), accepts))
    ours = client == server == "ours"
    # A server of this host that accepts by itself announces nothing, so no client asks it.
    assert paths == ({"rdma"} if ours and accepts == "the loop" else {"tcp"})
    assert hooks._installed is not None
    reasons = {row[3] for row in hooks._installed.report.counts}
    assert ("picows uses the socket itself" in reasons) == (not ours)


async def _echo(client: Callable[[], Echo], server: Callable[[], Echo], accepts: str) -> set[str]:
    loop = asyncio.get_running_loop()
    served: list[Echo] = []

    def make() -> Echo:
        served.append(server())
        return served[-1]

    make.__module__ = getattr(getattr(server, "func", server), "__module__", "")
    with anyio.fail_after(30), socket.create_server((LOCAL, 0)) as listening:
        listening.setblocking(False)
        address = listening.getsockname()
        async with asyncio.TaskGroup() as group:
            if accepts == "the loop":
                listener: Any = await loop.create_server(make, sock=listening)
            else:
                group.create_task(_accept(make, listening))
            ends = await loop.create_connection(client, *address)
        await ends[1].answered.wait()
        paths = {ends[1].path, served[0].path}
        ends[0].abort()
        served[0].transport.abort()
        if accepts == "the loop":
            listener.close()
    return paths


async def _accept(make: Callable[[], Echo], listening: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    accepted, _ = await loop.sock_accept(listening)
    await loop.connect_accepted_socket(make, accepted)
