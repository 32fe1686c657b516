"""The interface between a benchmark and a transport."""

from __future__ import annotations

import os
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

#: Of the server: this host, unless the ends are in two network namespaces.
HOST = os.environ.get("BENCHMARK_HOST", "127.0.0.1")


class Connection(Protocol):
    """The client's end. One connection serves one workload: the first request selects it."""

    @property
    def path(self) -> str | None:
        """ "rdma" or "tcp" for aiordma; None for other peers."""

    @property
    def fallback_reason(self) -> object:
        """Why aiordma fell back to TCP; None otherwise."""

    async def start_echo(self, size: int) -> None:
        """Ask the server to echo messages of `size` bytes."""

    async def ping(self, size: int, until: float, seconds: array[float]) -> None:
        """Do round trips of `size` bytes until `perf_counter()` passes `until`, but at least one."""

    async def at_rate(self, size: int, per_second: float, seconds: float) -> array[float]:
        """Do round trips that are due at a fixed rate: see `offered`."""

    async def flood(self, size: int, count: int) -> int:
        """Send `size` bytes `count` times; when all have arrived, return the server's CPU time in ns."""

    async def memory(self) -> tuple[int, int]:
        """Return (anonymous, shared) resident bytes of the server process."""

    async def keep_freed_memory(self) -> None:
        """Make the server call `conversation.keep_freed_memory()`."""

    async def close(self) -> None: ...


class Caller(Protocol):
    """The client's end of one connection for calls."""

    @property
    def path(self) -> str | None:
        """As in `Connection`."""

    @property
    def fallback_reason(self) -> object: ...

    def echo(self, message: bytes) -> Awaitable[Any]:
        """A unary call that echoes the message; any number may be in flight."""

    def order(self, number: int) -> Awaitable[tuple[int, float]]:
        """A call with a message of fields (`orders`); returns the number and the total of its receipt."""

    def items(self, count: int, size: int) -> AsyncIterator[Any]:
        """A call that streams `count` items of `size` bytes from the server."""

    async def close(self) -> None: ...


class Transport(Protocol):
    async def serve(self, ready: Callable[[str], None]) -> None:
        """Listen, call `ready(address)`, serve until cancelled."""

    async def connect(self, address: str) -> Any:
        """Return a `Connection`, for peers with calls a `Caller`, for datagrams a `DatagramPeer`."""
