"""The workloads. Each module has one `measure(bench) -> dict` that runs in the client process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ..peers.base import Caller, Connection, Transport
from ..peers.datagrams import DatagramPeer


@dataclass(frozen=True)
class Bench:
    """One client process's view of one server process."""

    transport: Transport
    address: str
    slice_seconds: float
    """How long one number is measured."""
    quick: bool
    expected_path: str | None
    server_pid: int
    """The server's process, for what only the kernel knows of it."""

    async def connect(self) -> Connection:
        connection: Connection = await self._connect()
        return connection

    async def connect_caller(self) -> Caller:
        caller: Caller = await self._connect()
        return caller

    async def connect_datagrams(self) -> DatagramPeer:
        peer: DatagramPeer = await self._connect()
        return peer

    async def _connect(self) -> Any:
        connection = await self.transport.connect(self.address)
        path = connection.path
        if path != self.expected_path:
            reason = connection.fallback_reason
            await connection.close()
            raise WrongPathError(f"the bytes travel by {path}, not by {self.expected_path}: {reason}")
        return connection


class WrongPathError(RuntimeError):
    """aiordma took a path other than this peer's: the result does not count."""


Measure = Callable[[Bench], Awaitable[dict[str, Any]]]
