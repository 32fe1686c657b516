"""What a benchmark needs of a way to move bytes."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol


class Connection(Protocol):
    """The client's end. One connection serves one workload: the first request decides."""

    @property
    def path(self) -> str | None:
        """ "rdma" or "tcp" where aiordma carries the bytes; None for the others."""

    @property
    def fallback_reason(self) -> object:
        """Why aiordma took TCP; None otherwise."""

    async def start_echo(self, size: int) -> None:
        """Ask the server to echo messages of `size` bytes."""

    async def ping(self, size: int, until: float, seconds: array[float]) -> None:
        """Round trips of `size` bytes, at least one, until `perf_counter()` passes `until`; adds times."""

    async def flood(self, size: int, count: int) -> int:
        """Send `count` times `size` bytes; returns, when all have arrived, the server's CPU time in ns."""

    async def memory(self) -> tuple[int, int]:
        """(anonymous, shared) resident bytes of the server process."""

    async def keep_freed_memory(self) -> None:
        """Have the server do `conversation.keep_freed_memory()`."""

    async def close(self) -> None: ...


class Caller(Protocol):
    """The client's end of one connection for calls."""

    @property
    def path(self) -> str | None:
        """As of a `Connection`."""

    @property
    def fallback_reason(self) -> object: ...

    def echo(self, message: bytes) -> Awaitable[Any]:
        """A unary call that gives the message back; any number of them at a time."""

    def items(self, count: int, size: int) -> AsyncIterator[Any]:
        """A call that streams `count` items of `size` bytes from the server."""

    async def close(self) -> None: ...


class Transport(Protocol):
    async def serve(self, ready: Callable[[str], None]) -> None:
        """Listen, call `ready(address)`, serve until cancelled."""

    async def connect(self, address: str) -> Any:
        """A `Connection`; of a peer for calls a `Caller`, for datagrams a `DatagramPeer`."""
