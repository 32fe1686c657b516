"""Stand-ins for peers that are kernels' SMC-R, on the software device: with a listener, and in pairs.

They are made of ``proto``'s state machines and the data path (tests/vm/smc/peer.py), and share nothing with
``links``. ``make test-smc`` has the kernel itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import threading
from contextvars import Context
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aiordma.config import Config
from aiordma.links import engine as links_engine
from tests.health import until
from tests.processes import PATIENCE
from tests.vm.smc.peer import Peer
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine
    from concurrent.futures import Future

    from aiordma.links.engine import Engine
    from aiordma.streams.stream import RdmaStream
    from tests.vm.smc.peer import Member

NAME = "AIORDMA-TEST-EID"
EID = NAME.encode().ljust(32)
#: Of ends that such peers find.
CONFIG = Config(device=DEVICE, smcr_eids=NAME, ring_bytes=65536)


class Kernel:
    """A peer with a listener of its own."""

    def __init__(self, engine: Engine, eid: bytes = EID) -> None:
        self.peer = Peer(engine, "lo", (eid,))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.sockets: list[socket.socket] = []
        self.streams: list[RdmaStream] = []

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.listener.getsockname()
        return host, port

    async def accept(self) -> tuple[RdmaStream, Member]:
        sock, _ = await asyncio.get_running_loop().sock_accept(self.listener)
        sock.setblocking(False)
        self.sockets.append(sock)
        return self._kept(await self.peer.accept(sock))

    async def connect(self, port: int, host: str = "127.0.0.1") -> tuple[RdmaStream, Member]:
        sock = socket.socket()
        sock.setblocking(False)
        sock.bind((host, 0))
        self.sockets.append(sock)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        return self._kept(await self.peer.connect(sock))

    def _kept(self, made: tuple[RdmaStream, Member]) -> tuple[RdmaStream, Member]:
        self.streams.append(made[0])
        return made

    async def close(self) -> None:
        for stream in self.streams:
            stream.abort()
        await self.peer.close()
        for sock in (self.listener, *self.sockets):
            sock.close()


@pytest.fixture
async def engine() -> Engine:
    return await links_engine.current(CONFIG)


@pytest.fixture
async def kernel(engine: Engine) -> AsyncIterator[Kernel]:
    made = Kernel(engine)
    yield made
    await made.close()


class Pair:
    """A client's and a server's end on one device."""

    def __init__(self, engine: Engine) -> None:
        self._client, self._server = Kernel(engine), Kernel(engine)
        self.client, self.server = self._client.peer, self._server.peer

    async def connect(self) -> tuple[tuple[RdmaStream, Member], tuple[RdmaStream, Member]]:
        ends = await asyncio.gather(
            self._client.connect(self._server.address[1]), self._server.accept(), return_exceptions=True
        )
        for end in ends:
            if isinstance(end, BaseException):
                raise end
        return ends[0], ends[1]  # type: ignore[return-value]

    async def close(self) -> None:
        for end in self._client, self._server:
            for stream in end.streams:
                stream.abort()
        for end in self._client, self._server:
            await end.close()


class Elsewhere:
    """A peer in a thread with a loop of its own: the other loop may be of any kind, and blocked.

    Made and closed outside of loops.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.kernel: Kernel = self.wait(self._open())

    async def _open(self) -> Kernel:
        return Kernel(await links_engine.current(self._config))

    def begin(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        # This loop may be trio's: its context would tell the other one so.
        return Context().run(asyncio.run_coroutine_threadsafe, work, self.loop)

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Block until it is done."""
        return self.begin(work).result(PATIENCE)

    async def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        future = self.begin(work)
        await until(future.done)
        return future.result()

    def close(self) -> None:
        self.wait(self.kernel.close())
        self.wait(self.loop.shutdown_asyncgens())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def echo(stream: RdmaStream) -> None:
    with contextlib.suppress(anyio.EndOfStream):
        while True:
            await stream.send(await stream.receive())
    await stream.send_eof()


async def check(stream: RdmaStream, data: bytes) -> None:
    """The other end echoes, and ends when this one does."""

    async def send() -> None:
        await stream.send(data)
        await stream.send_eof()

    seen = hashlib.sha256()
    sending = asyncio.ensure_future(send())
    with contextlib.suppress(anyio.EndOfStream):
        while True:
            seen.update(await stream.receive())
    await sending
    assert seen.digest() == hashlib.sha256(data).digest()
