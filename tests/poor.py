"""Sockets of a process that has no memory for what they hold, and whether the loop rests then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio.lowlevel

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from aiordma.wake.accepting import Acceptor


class Poor:
    """A socket of a process that has no memory for more than ``room`` bytes."""

    def __init__(self, sock: socket.socket, room: int) -> None:
        self._sock, self.room, self.calls = sock, room, 0

    def recv(self, size: int, *more: Any) -> bytes:
        self.calls += 1
        if size > self.room:
            raise MemoryError
        return self._sock.recv(size, *more)

    def recvmsg(self, *_: int) -> Any:
        self.calls += 1
        raise MemoryError

    def send(self, data: Any) -> int:
        self.calls += 1
        if not self.room:
            raise MemoryError
        return self._sock.send(data)

    def accept(self) -> Any:
        self.calls += 1
        if not self.room:
            raise MemoryError
        return self._sock.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def poor_listeners(acceptor: Acceptor) -> list[Poor]:
    """Let it find no memory for connections, from its next turn on."""
    poor: list[Any] = [Poor(sock, 0) for sock in acceptor._sockets]
    acceptor._stop()
    acceptor._sockets[:] = poor
    acceptor.resume()
    return poor


async def is_quiet(calls: Callable[[], int]) -> None:
    """The loop goes on, and does not call any more."""
    before = calls()
    for _ in range(1000):
        await anyio.lowlevel.checkpoint()
    assert calls() - before < 20
