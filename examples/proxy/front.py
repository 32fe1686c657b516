"""The front: Redis clients on TCP, lanes to the back."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from .client import Client
from .commands import SHARED
from .pool import Dialer, OwnLanes, SharedLanes

if TYPE_CHECKING:
    from .net import Address, Mode

logger = logging.getLogger("redis_proxy.front")


class Front:
    """Call `start()`, then `stop()`; both once."""

    def __init__(
        self,
        listen: Address,
        to: Address,
        *,
        mode: Mode,
        streams: int,
        client_buffer_bytes: int,
        patience_s: float,
    ) -> None:
        self.listen = listen
        self.client_buffer_bytes = client_buffer_bytes
        self.dialer = Dialer(to, mode, patience_s)
        self.shared = {protocol: SharedLanes(self.dialer, protocol, streams) for protocol in (2, 3)}
        self.own = OwnLanes(self.dialer)
        # Spellings of shareable command names; others are added when first used.
        self.known = set(SHARED) | {name.lower() for name in SHARED}
        self._clients: set[Client] = set()
        self._seen = 0
        self._empty = asyncio.Event()

    async def start(self) -> None:
        """Listen. Raises OSError if that fails."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Client(self), self.listen.host, self.listen.port, backlog=512
        )
        self.listen = self.listen._replace(port=self._server.sockets[0].getsockname()[1])
        self.shared[2].start()
        logger.info("Redis clients connect to %s", self.listen)

    async def stop(self, grace_s: float) -> None:
        """Accept no new clients and commands, let running commands finish for up to `grace_s`, then
        disconnect."""
        self._server.close()
        logger.info("stopping: %d clients", len(self._clients))
        for client in list(self._clients):
            client.finish()
        try:
            async with asyncio.timeout(grace_s):
                while self._clients:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            logger.warning("%d clients are cut off after %.1f s", len(self._clients), grace_s)
            for client in list(self._clients):
                client.abort()
        await asyncio.gather(self.own.close(), *(lanes.close() for lanes in self.shared.values()))
        await asyncio.sleep(0)  # the transports' last callbacks

    def joined(self, client: Client) -> None:
        self._clients.add(client)
        self._seen += 1

    def left(self, client: Client) -> None:
        self._clients.discard(client)
        self._empty.set()

    def report(self) -> str:
        """Return a readable summary of the current state."""
        lines = [
            f"front {self.listen} -> {self.dialer.to} by {self.dialer.path or 'nothing yet'}",
            f"  {len(self._clients)} clients now, {self._seen} in all",
            f"  {self.own.in_use} lanes used by one client alone",
            f"  {self.dialer.opened} streams opened so far",
        ]
        for protocol, lanes in self.shared.items():
            for number, lane in enumerate(lanes.lanes):
                load = f"{lane.users} clients, {lane.commands} commands in {lane.writes} writes"
                lines.append(f"  RESP{protocol} lane {number}: {load}{', full' if lane.is_full else ''}")
            if lanes.reason:
                lines.append(f"  RESP{protocol}: none up: {lanes.reason}")
        return "\n".join(lines)
