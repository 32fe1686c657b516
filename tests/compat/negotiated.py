"""The outcome of a negotiation without one: a ring in memory, or TCP."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from aiordma.errors import Code, FallbackReason, NegotiationError
from aiordma.negotiation.dialogue import NegotiationResult
from aiordma.testing.memory import MemoryPipe, memory_pipe_pair

if TYPE_CHECKING:
    from aiordma.config import Config
    from aiordma.negotiation.options import ConnectOptions, PathOptions

REASON = FallbackReason.of_local(Code.NO_DEVICE, "in this test")


class Negotiation:
    """Replaces the negotiation at both ends."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.pipes: dict[Any, MemoryPipe] = {}
        self.seen: list[tuple[Config, str]] = []
        self.accepted = 0
        self.hold: asyncio.Event | None = None

    async def current(self, config: Config) -> None:
        if self.path == "tcp":
            raise NegotiationError(REASON.code, "in this test")

    async def client(
        self, host: str, port: int, options: ConnectOptions, *, candidates: Any = None
    ) -> NegotiationResult:
        self.seen.append((options.config, options.mode))
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        sock.setblocking(False)
        sock.bind((options.local_host or "127.0.0.1", 0))
        pipe = None
        if self.path == "rdma":
            pipe, far = memory_pipe_pair(4096)
            self.pipes[sock.getsockname()] = far
        try:
            await loop.sock_connect(sock, (host, port))
        except BaseException:
            self.pipes.pop(sock.getsockname(), None)
            if pipe is not None:
                pipe.abort()
            sock.close()
            raise
        return self.outcome(pipe, sock)

    async def server(self, sock: socket.socket, options: PathOptions, **_: object) -> NegotiationResult:
        self.seen.append((options.config, options.mode))
        self.accepted += 1
        if self.hold is not None:
            try:
                await self.hold.wait()
            except BaseException:
                sock.close()
                raise
        return self.outcome(self.pipes.pop(sock.getpeername(), None), sock)

    def outcome(self, pipe: MemoryPipe | None, sock: socket.socket) -> NegotiationResult:
        local, remote = sock.getsockname(), sock.getpeername()
        if pipe is None:
            return NegotiationResult(None, sock, REASON, local, remote)
        pipe.attach_tcp(sock)
        return NegotiationResult(pipe, sock, None, local, remote)
