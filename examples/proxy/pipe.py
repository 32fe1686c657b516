"""Join two transports: each sends what the other receives, with back-pressure."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Pipe(asyncio.Protocol):
    """One direction: everything that its own transport receives is written to `peer`.

    While its own transport's write buffer is full, reading from `peer` pauses. `half_close`: an EOF is
    forwarded and replies may still follow (a client); otherwise an EOF closes both (a server that has
    disconnected)."""

    def __init__(
        self, peer: asyncio.Transport, *, half_close: bool, on_closed: Callable[[], None] | None = None
    ) -> None:
        self.peer = peer
        self.half_close = half_close
        self.on_closed = on_closed
        self.data_received = peer.write  # type: ignore[method-assign]  # nothing to add to it

    def pause_writing(self) -> None:
        if not self.peer.is_closing():
            self.peer.pause_reading()

    def resume_writing(self) -> None:
        if not self.peer.is_closing():
            self.peer.resume_reading()

    def eof_received(self) -> bool:
        if self.half_close and not self.peer.is_closing():
            self.peer.write_eof()
            return True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None:  # then buffered bytes are still delivered
            self.peer.close()
        else:
            self.peer.abort()
        if self.on_closed is not None:
            self.on_closed()


def join(client: asyncio.Transport, server: asyncio.Transport, on_closed: Callable[[], None]) -> None:
    """Join both directions. `on_closed` is called when the client's side has closed."""
    client.set_protocol(Pipe(server, half_close=True, on_closed=on_closed))
    server.set_protocol(Pipe(client, half_close=False))
