"""What the asyncio transport, the ring below it, and the readers and servers above it ask of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from .transport import RingTransport

Bytes = bytes | bytearray | memoryview


class Pipe(Protocol):
    """What the transport needs of a ring pipe (`aiordma.pipes._ring.RingPipe`)."""

    on_readable: Callable[[], None] | None
    on_writable: Callable[[], None] | None

    @property
    def readable(self) -> int: ...
    @property
    def at_eof(self) -> bool: ...
    @property
    def error(self) -> BaseException | None: ...
    def try_send(self, data: Bytes, start: int = 0) -> int: ...
    def try_receive(self, max_bytes: int) -> bytes | None: ...
    def try_receive_into(self, buf: bytearray | memoryview) -> int: ...
    def view(self) -> memoryview: ...
    def consume(self, n: int) -> None: ...
    def spin_readable(self) -> bool: ...
    def spin_writable(self) -> bool: ...
    def send_eof(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class PullReader(Protocol):
    """A reader that takes its data from the ring itself."""

    def ring_attached(self, transport: RingTransport, pipe: Pipe | None) -> None:
        """Take from `pipe` from now on; None: not now (reading is paused, or nothing more will come)."""

    def ring_detached(self) -> None:
        """The pipe belongs to somebody else from now on, with what is in it."""

    def ring_closing(self) -> None:
        """The pipe is about to be closed: the last chance to take what has arrived."""

    def ring_news(self) -> None:
        """Data has arrived."""


class PullProtocol:
    """Mixin of protocols whose data is pulled: names the reader that does it."""

    def pull_reader(self) -> PullReader | None:
        """The reader, None when it is gone and nobody will ever read."""
        raise NotImplementedError


class TransportOwner(Protocol):
    """A server: counts its connections."""

    def attach(self, transport: asyncio.BaseTransport) -> None: ...
    def detach(self, transport: asyncio.BaseTransport) -> None: ...
